r"""Replies with and without drafts from their own text, in one run.

    taskset -c 0 python -m experiments.benchmarks.speculation
        [--shape=qwen3-0.6b] [--turns=3] [--sizes=8,16,32,64]

The model has a real one's shape and random weights, so it copies nothing by
itself. Its replies are recorded texts: each call draws as it always does, and
then takes the recorded token instead. One reply has a part that is copied from
the prompt, in a few spans; one has nothing of it; one is a random walk over few
tokens, in which nearly all drafts are wrong. Each is given out with and without
speculation, in turns, and the figure is the median ratio of both times from the
first token to the last. The engine times its calls by the same clock. Beside
it stands the ratio of the calls' least times, which other load moves less. With
`--sizes` it gives out no reply: it prints the least times of a step and of
drafts of these sizes.
"""

import collections
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import functools
import pathlib
import statistics
import time
from unittest import mock

from absl import flags

from kaiju_jax.runs import command
from kaiju_jax.runs.benchmarks import open_shapes

_SHAPE = flags.DEFINE_enum(
  'shape', 'smollm2-135m', list(open_shapes.SHAPES), 'Whose.'
)
_MODEL = flags.DEFINE_string(
  'model', '', 'A Hugging Face folder of a shape; by default one is written.'
)
_PROMPT = flags.DEFINE_integer('prompt', 256, 'Tokens of the prompt.', 64)
_REPLY = flags.DEFINE_integer('reply', 256, 'Tokens of a reply.', 8)
_COPIED = flags.DEFINE_float('copied', 0.4, 'Part that is copied.', 0.0, 1.0)
_SPANS = flags.DEFINE_integer('spans', 2, 'In so many pieces.', 1)
_TURNS = flags.DEFINE_integer('turns', 3, 'How often all run.', 1)
_SIZES = flags.DEFINE_list('sizes', [], 'Times drafts of these tokens alone.')
_CLOCK = flags.DEFINE_enum(
  'clock',
  'processor',
  ['wall', 'processor'],
  'Seconds of what; of the processor where others use the machine too.',
)
_CLOCKS = {'wall': time.perf_counter, 'processor': time.process_time}


def texts(vocabulary: int, prompt: int, reply: int, copied: float, spans: int):
  """Returns texts by name, int32 [prompt + reply], all with one prompt."""
  import numpy as np

  rng = np.random.default_rng(0)
  prompt_L = rng.integers(8, vocabulary, prompt, dtype=np.int32)
  new_L = rng.integers(8, vocabulary, reply, dtype=np.int32)
  copying_L = new_L.copy()
  size, step = int(copied * reply) // spans, reply // spans
  for span in range(spans):
    begin = int(rng.integers(prompt - size))
    end = (span + 1) * step
    copying_L[end - size : end] = prompt_L[begin : begin + size]
  walk_L = rng.integers(8, 12, reply, dtype=np.int32)
  return {
    f'{copied:.0%} copied, {spans} spans': np.append(prompt_L, copying_L),
    'nothing copied': np.append(prompt_L, new_L),
    'wrong drafts': np.append(prompt_L, walk_L),
  }


def _measure(folder: pathlib.Path) -> None:
  import numpy as np

  from kaiju_jax.decoding.engine import engine as engine_lib
  from kaiju_jax.decoding.engine import speculation
  from kaiju_jax.decoding.requests import sampling
  from kaiju_jax.quantization import config as quantization_config
  from kaiju_jax.runs import load

  clock = _CLOCKS[_CLOCK.value]
  loaded = load.from_anywhere(
    folder, quantization=quantization_config.for_serving()
  )
  decoder = load.decoder(
    loaded,
    None,
    rows=1,
    length=_PROMPT.value + _REPLY.value,
    extra=speculation.SIZES[-1] - 1,
  )
  scripts = texts(
    loaded.config.vocab_size,
    _PROMPT.value,
    _REPLY.value,
    _COPIED.value,
    _SPANS.value,
  )
  forced = functools.partial(
    _forced, sampling.draw, np.stack(list(scripts.values()))
  )
  with mock.patch.object(sampling, 'draw', forced):
    engine = engine_lib.Engine(decoder, speculates=True, clock=clock)
    engine.warm([_PROMPT.value])
    drafts = engine.rounds.drafts
    ratios = {name: [] for name in scripts}
    calls = {}
    for turn in range(-1, _TURNS.value):
      for number, (name, text_L) in enumerate(scripts.items()):
        seconds = []
        for sizes in [], drafts:
          engine.rounds._drafts = sizes
          calls[name, bool(sizes)] = collections.Counter()
          with _counted(engine, calls[name, bool(sizes)]):
            seconds.append(_answer(engine, text_L, number, clock))
        if turn >= 0:  # The first turn teaches what calls take.
          ratios[name].append(seconds[0] / seconds[1])
          print(f'turn {turn}: {name}: {seconds}', flush=True)
  least = {call[:2]: call[2] for call in engine._speculation.seconds()}
  print('Least ms:', {k: round(1e3 * x, 1) for k, x in least.items()})
  print('| reply | calls | × tokens/s | × by least times |\n|---|---|---|---|')
  for name, found in ratios.items():
    without, drafted = (
      sum(count * least[call] for call, count in calls[name, x].items())
      for x in (False, True)
    )
    told = ', '.join(
      f'{count} {kind} {size}'
      for (kind, size), count in sorted(calls[name, True].items())
    )
    print(
      f'| {name} | {told} | {statistics.median(found):.2f}'
      f' ({min(found):.2f} to {max(found):.2f}) | {without / drafted:.2f} |'
    )


def _time_calls(folder: pathlib.Path) -> None:
  import jax
  import numpy as np

  from kaiju_jax.decoding.engine import compiled
  from kaiju_jax.decoding.requests import sampling
  from kaiju_jax.quantization import config as quantization_config
  from kaiju_jax.runs import load

  clock, sizes = _CLOCKS[_CLOCK.value], list(map(int, _SIZES.value))
  loaded = load.from_anywhere(
    folder, quantization=quantization_config.for_serving()
  )
  room = _PROMPT.value + max(sizes)
  decoder = load.decoder(loaded, None, rows=1, length=room, extra=max(sizes))
  rounds = compiled.Rounds(decoder, max(sizes), drafts=sizes)
  text_L = np.random.default_rng(0).integers(8, 4000, room, dtype=np.int32)
  row = decoder.open(room)
  rounds.join(row, sampling.Sampling(temperature=0), text_L[:0])
  while (length := decoder.length_of(row)) < _PROMPT.value:
    end = min(length + rounds.chunk, _PROMPT.value)
    chunk = compiled.Chunk(row, text_L[length:end], end == _PROMPT.value)
    rounds.prefill([chunk], rounds.shape_of(end - length))

  def least(call, *given) -> float:
    seconds = []
    for _ in range(_TURNS.value + 1):  # The first compiles.
      begun = clock()
      jax.block_until_ready(call(*given))
      seconds.append(clock() - begun)
      decoder.cut(row, length)
    return 1e3 * min(seconds[1:])

  step = least(rounds.step, [row])
  print('| tokens | ms | ms per token |\n|---|---|---|')
  print(f'| a step | {step:.1f} | |')
  for size in sizes:
    ms = least(rounds.verify, row, text_L[: size - 1], size)
    print(f'| {size} | {ms:.1f} | {ms / size:.2f} |', flush=True)


@contextlib.contextmanager
def _counted(engine, calls: collections.Counter) -> Iterator[None]:
  """Counts the calls that a reply takes."""
  rounds = engine.rounds

  def step(rows):
    calls['step', len(rows)] += 1
    return type(rounds).step(rounds, rows)

  def verify(row, draft_L, size):
    calls['draft', size] += 1
    return type(rounds).verify(rounds, row, draft_L, size)

  rounds.step, rounds.verify = step, verify
  try:
    yield
  finally:
    del rounds.step, rounds.verify


def _forced(draw, script_SL, logits_BV, settings, index_B, seen_BV=None):
  """Draws, and then returns the recorded token of the text `seed`."""
  import jax.numpy as jnp

  token_B, own_B = draw(logits_BV, settings, index_B, seen_BV)
  last = script_SL.shape[1] - 1
  place_B = jnp.minimum(index_B, last)
  recorded_B = jnp.asarray(script_SL)[settings.seed_B, place_B]
  return jnp.where(token_B < -1, token_B, recorded_B), own_B


def _answer(engine, text_L, number: int, clock) -> float:
  """Returns the seconds between a reply's first token and its last."""
  from kaiju_jax.decoding.requests import request
  from kaiju_jax.decoding.requests import sampling
  from kaiju_jax.runs.load_test import engine_serving

  engine_serving.forget(engine)
  one = engine.submit(
    request.Request(
      text_L[: _PROMPT.value],
      _REPLY.value,
      sampling.Sampling(temperature=0, seed=number),
    )
  )
  while not one.events:
    engine.advance()
  begun = clock()
  while one.reason is None:
    engine.advance()
  taken = clock() - begun
  assert (one.result().tokens == text_L[_PROMPT.value :]).all()
  return taken


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  measure = _time_calls if _SIZES.value else _measure
  with open_shapes.provide(_SHAPE.value, _MODEL.value) as folder:
    measure(folder)


if __name__ == '__main__':
  command.run(main)
