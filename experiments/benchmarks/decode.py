r"""Compare prefill and decoding with `transformers` and llama.cpp, in one run.

    python -m experiments.benchmarks.decode --batch=8 --length=2048 --turns=2
    python -m experiments.benchmarks.decode --shape=qwen3-0.6b --arms=all
    python -m experiments.benchmarks.decode --parts=quality

A folder of a model's shape with random weights, which all sides read: ours by
the arms of `serve --int8`, `transformers` in float32 and bfloat16 with both of
its caches, and llama.cpp in Q8_0. The shape `arcee-97m` has squared ReLU
without a gate, one head of keys and values, and global layers alone.

    speed     tokens per second of prefill and of a greedy step. Sides take
              turns, and each has its least time, because what disturbs only
              adds
    quality   our arms beside `transformers` in float32: logits, KL, memory
    local     a step of a model of `arcee-97m` with windows alone, int8, behind
              --length tokens and behind --far

Needs the extra `interchange`; llama.cpp needs llama-cpp-python and gguf too,
and is left out where they are not installed.
"""

from collections.abc import Sequence
import dataclasses
import os
from typing import Literal

from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.reporting import report
from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is compared."""

  # What to measure.
  parts: tuple[Literal['speed', 'quality', 'local'], ...] = ('speed', 'quality')
  # The shape of the model.
  shape: Literal[*open_shapes.NAMES] = 'arcee-97m'
  # Our arms.
  arms: tuple[Literal['none', 'weights', 'all'], ...] = (
    *('none', 'weights', 'all'),
  )
  # Rows.
  batch: flags.Positive = 1
  # Tokens of a prompt.
  length: flags.Positive = 128
  # The longer context of the part `local`.
  far: flags.Positive = 32_768
  # Decoding steps in a turn.
  steps: flags.Positive = 8
  # How often every side runs.
  turns: flags.Positive = 4
  # Seconds of what; of the processor where others use the machine too.
  clock: Literal['wall', 'processor'] = 'wall'


_FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = _FLAGS.read(argv)
  # Threads of torch that wait by spinning slow down all others.
  os.environ.setdefault('OMP_WAIT_POLICY', 'passive')
  from kaiju_jax.experiments.benchmarks.parts import decode_sides

  page = report.Report()
  page.say(f'{settings.shape}, {settings.batch} × {settings.length} tokens')
  with open_shapes.provide(settings.shape) as folder:
    for part in settings.parts:
      decode_sides.PARTS[part](page, folder, settings)
  page.show()


if __name__ == '__main__':
  command.run(main)
