r"""Would one call of steps and a prompt's chunk save time over two calls?

    taskset -c 0 python -m experiments.benchmarks.mixed_call
        [--model=FOLDER] [--rows=8]

A round with a prompt runs two programs: a step of R rows, and a chunk of L
tokens. Each reads all weights. A mixed call would read them once. It is not
built: a chunk of L + R tokens of one row, with the head of a step, stands for
it. It multiplies as many tokens by the same weights, and attends to fewer
pages. So the table shows the most that a mixed call could save. Least seconds
of the processor.
"""

from collections.abc import Sequence
import pathlib
import time

from absl import flags

from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.runs import command
from kaiju_jax.runs import report

_SHAPE = flags.DEFINE_enum(
  'shape', 'smollm2-135m', list(open_shapes.SHAPES), 'Whose.'
)
_MODEL = flags.DEFINE_string(
  'model', '', 'A Hugging Face folder of a shape; by default one is written.'
)
_ROWS = flags.DEFINE_integer('rows', 8, 'Rows of the step.', 1)
_CHUNKS = flags.DEFINE_list('chunks', '16,64,256', 'Tokens of the chunks.')
_TURNS = flags.DEFINE_integer('turns', 4, 'How often each call runs.', 1)

_TEXT = 64  # Tokens of a row's text.


def _measure(folder: pathlib.Path) -> None:
  import jax
  import numpy as np

  from kaiju_jax.decoding.engine import compiled
  from kaiju_jax.decoding.requests import sampling
  from kaiju_jax.quantization import config as quantization_config
  from kaiju_jax.runs import load
  from kaiju_jax.runs import play

  loaded = load.from_anywhere(
    folder, quantization=quantization_config.for_serving()
  )
  sizes, rows = list(map(int, _CHUNKS.value)), _ROWS.value
  decoder = play.decoder(
    loaded,
    None,
    rows=rows + 1,
    length=512,
    extra=max(_TEXT, *sizes) + rows,
  )
  rounds = compiled.Rounds(decoder, max(_TEXT, *sizes))
  text_L = np.random.default_rng(0).integers(8, 4000, 600, dtype=np.int32)
  lengths = {}
  for row in range(rows + 1):
    assert decoder.open(512) == row
    rounds.join(row, sampling.Sampling(temperature=0), text_L[:0])
    chunk = compiled.Chunk(row, text_L[:_TEXT], True)
    rounds.prefill([chunk], rounds.shape_of(_TEXT))
    lengths[row] = decoder.length_of(row)

  def least(call, *given) -> float:
    seconds = []
    for _ in range(_TURNS.value + 1):  # The first compiles.
      begun = time.process_time()
      jax.block_until_ready(call(*given))
      seconds.append(time.process_time() - begun)
      for row, length in lengths.items():
        decoder.cut(row, length)
    return 1e3 * min(seconds[1:])

  def run(count: int, draws: bool):
    chunk = compiled.Chunk(rows, text_L[:count], draws)
    return rounds.prefill([chunk], (1, count)).packed

  step = least(rounds.step, range(rows))
  lines = []
  for size in sizes:
    alone = least(run, size, False)
    mixed = least(run, size + rows, True)
    saved = f'{1 - mixed / (step + alone):.0%}'
    lines.append((size, step, alone, mixed, saved))
    print(lines[-1], flush=True)
  columns = 'chunk', f'step of {rows}, ms', 'chunk, ms', 'both in one', 'saved'
  cells = [
    (size, f'{step:.1f}', f'{alone:.1f}', f'{mixed:.1f}', saved)
    for size, step, alone, mixed, saved in lines
  ]
  report.show([report.table(columns, cells)], width=100)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  with open_shapes.provide(_SHAPE.value, _MODEL.value) as folder:
    _measure(folder)


if __name__ == '__main__':
  command.run(main)
