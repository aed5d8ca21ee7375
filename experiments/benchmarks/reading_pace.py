"""Measures how much sooner prompts are answered where fast replies are capped.

    python -m experiments.benchmarks.reading_pace --model=runs/chat

--fast replies have been drawn for a while, faster than people read, when
others' prompts come, one after the other. Each run does so with the pace and
without, in changing order, with the same texts. Both are timed from a prompt to
its first token, and the fast replies' tokens per second meanwhile.
"""

from collections.abc import Sequence
import statistics
import time

from absl import flags

from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string('model', None, 'A workdir or an export.')
_PACE = flags.DEFINE_string('pace', '8:30', 'LOW:HIGH tokens per second.')
_FAST = flags.DEFINE_integer('fast', 6, 'Replies that are drawn already.', 1)
_SLOW = flags.DEFINE_integer('slow', 2, 'Prompts, one after the other.', 1)
_PROMPT = flags.DEFINE_integer('prompt', 256, 'Tokens of each prompt.', 1)
_CHUNK = flags.DEFINE_integer('chunk', 32, 'Prompt tokens of a round.', 1)
_RUNS = flags.DEFINE_integer('runs', 7, 'With the pace and without.', 1)
# Tokens that a fast reply has when the first prompt comes, and of a new reply.
_HEAD_START, _DRAWN = 48, 16


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL)
  from kaiju_jax.decoding.engine import pacing

  pace = pacing.parse(_PACE.value)
  decoder, vocabulary = _decoder()
  engines = {pace: _engine(decoder, pace), None: _engine(decoder, None)}
  engines[None].rounds = engines[pace].rounds  # What is compiled is for both.
  found = {pace: [], None: []}
  for run in range(_RUNS.value + 1):
    order = (pace, None) if run % 2 else (None, pace)
    for one in order:
      times = _run(engines[one], vocabulary, run)
      if run:  # The first one warms up.
        found[one].append(times)
  for index, name in (
    (0, 'first token of a prompt, s'),
    (1, "a new reply's tokens per second"),
    (2, "a fast reply's tokens per second meanwhile"),
  ):
    capped = [times[index] for times in found[pace]]
    free = [times[index] for times in found[None]]
    ratios = [a / b for a, b in zip(capped, free)]
    print(
      f'{name}: {statistics.median(free):.3f} without,'
      f' {statistics.median(capped):.3f} with {_PACE.value};'
      f' x {statistics.median(ratios):.3f} ({min(ratios):.3f} to'
      f' {max(ratios):.3f} in {len(ratios)} runs)'
    )


def _decoder():
  from kaiju_jax.data import tokenizer as tokenizer_lib
  from kaiju_jax.runs import load
  from kaiju_jax.runs import play

  loaded = load.from_anywhere(_MODEL.value)
  size = loaded.config.vocab_size
  tokenizer = tokenizer_lib.load(loaded.tokenizer, size)
  rows = _FAST.value + _SLOW.value
  return play.decoder(
    loaded, tokenizer, rows=rows, length=loaded.config.max_length
  ), size


def _engine(decoder, pace):
  from kaiju_jax.decoding.engine import engine as engine_lib

  engine = engine_lib.Engine(decoder, chunk=_CHUNK.value, pace=pace)
  if pace is not None:
    engine.warm()
  return engine


def _run(engine, vocabulary: int, seed: int) -> tuple[float, float, float]:
  """Returns medians over the prompts of one run; units as `main` prints."""
  import numpy as np

  from kaiju_jax.decoding.requests import request
  from kaiju_jax.decoding.requests import sampling

  rng = np.random.default_rng(seed)
  most = engine.decoder.length - 8

  def submit(count: int, tokens: int):
    prompt = rng.integers(0, vocabulary, count, dtype=np.int32)
    drawn = sampling.Sampling(seed=seed)
    return engine.submit(request.Request(prompt, tokens, drawn))

  fast = [submit(8, most) for _ in range(_FAST.value)]
  while any(len(one.events) < _HEAD_START for one in fast):
    engine.advance()
  firsts, rates, others = [], [], []
  for _ in range(_SLOW.value):
    before = sum(len(one.events) for one in fast)
    begun = time.perf_counter()
    one = submit(_PROMPT.value, _DRAWN)
    while not one.events:
      engine.advance()
    first = time.perf_counter()
    after = sum(len(one.events) for one in fast)
    while one.reason is None:
      engine.advance()
    rates.append((_DRAWN - 1) / (time.perf_counter() - first))
    firsts.append(first - begun)
    others.append((after - before) / len(fast) / (first - begun))
  assert all(one.reason is None for one in fast), 'a fast reply has ended.'
  for one in fast:
    engine.cancel(one)
  for point in list(engine.decoder.account.tree.points()):
    engine.decoder.account.tree.drop(point)
  return tuple(map(statistics.median, (firsts, rates, others)))


if __name__ == '__main__':
  command.run(main)
