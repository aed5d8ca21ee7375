"""Times replies with and without drafts from their own text.

A model of random weights copies nothing by itself. Its replies are recorded
texts: each call draws as it always does, and then takes the recorded token
instead.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import pathlib
import statistics
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import speculation
from kaiju_jax.decoding.requests import request
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.experiments.benchmarks.load_test import engine_serving
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import load
from kaiju_jax.runs import play


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings of a measurement.

  Attributes:
    prompt: tokens of the prompt.
    reply: tokens of each reply.
    copied: the part of a reply that is copied from the prompt.
    spans: in how many pieces it is copied.
    turns: how often all run.
    sizes: tokens of the drafts that `time_calls` times.
    clock: returns seconds.
  """

  prompt: int = 256
  reply: int = 256
  copied: float = 0.4
  spans: int = 2
  turns: int = 3
  sizes: tuple[int, ...] = ()
  clock: Callable[[], float] = time.process_time


def texts(vocabulary: int, prompt: int, reply: int, copied: float, spans: int):
  """Returns texts by name, int32 [prompt + reply], all with one prompt."""
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


def measure(folder: pathlib.Path, settings: Settings) -> None:
  """Gives out each reply with and without drafts; prints the ratios."""
  loaded = load.from_anywhere(
    folder, quantization=quantization_config.for_serving()
  )
  decoder = play.decoder(
    loaded,
    None,
    rows=1,
    length=settings.prompt + settings.reply,
    extra=speculation.SIZES[-1] - 1,
  )
  scripts = texts(
    loaded.config.vocab_size,
    settings.prompt,
    settings.reply,
    settings.copied,
    settings.spans,
  )
  forced = functools.partial(
    _forced, sampling.draw, np.stack(list(scripts.values()))
  )
  with mock.patch.object(sampling, 'draw', forced):
    engine = engine_lib.Engine(decoder, speculates=True, clock=settings.clock)
    engine.warm([settings.prompt])
    drafts = engine.rounds.drafts
    ratios = {name: [] for name in scripts}
    calls = {}
    for turn in range(-1, settings.turns):
      for number, (name, text_L) in enumerate(scripts.items()):
        seconds = []
        for sizes in [], drafts:
          engine.rounds._drafts = sizes
          calls[name, bool(sizes)] = collections.Counter()
          with _counted(engine, calls[name, bool(sizes)]):
            seconds.append(_answer(engine, text_L, number, settings))
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


def time_calls(folder: pathlib.Path, settings: Settings) -> None:
  """Prints the least times of a step, and of drafts of `settings.sizes`."""
  clock, sizes = settings.clock, settings.sizes
  loaded = load.from_anywhere(
    folder, quantization=quantization_config.for_serving()
  )
  room = settings.prompt + max(sizes)
  decoder = play.decoder(loaded, None, rows=1, length=room, extra=max(sizes))
  rounds = compiled.Rounds(decoder, max(sizes), drafts=sizes)
  text_L = np.random.default_rng(0).integers(8, 4000, room, dtype=np.int32)
  row = decoder.open(room)
  rounds.join(row, sampling.Sampling(temperature=0), text_L[:0])
  while (length := decoder.length_of(row)) < settings.prompt:
    end = min(length + rounds.chunk, settings.prompt)
    chunk = compiled.Chunk(row, text_L[length:end], end == settings.prompt)
    rounds.prefill([chunk], rounds.shape_of(end - length))

  def least(call, *given) -> float:
    seconds = []
    for _ in range(settings.turns + 1):  # The first compiles.
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
  token_B, own_B = draw(logits_BV, settings, index_B, seen_BV)
  last = script_SL.shape[1] - 1
  place_B = jnp.minimum(index_B, last)
  recorded_B = jnp.asarray(script_SL)[settings.seed_B, place_B]
  return jnp.where(token_B < -1, token_B, recorded_B), own_B


def _answer(engine, text_L, number: int, settings: Settings) -> float:
  """Returns the seconds between a reply's first token and its last."""
  engine_serving.forget(engine)
  one = engine.submit(
    request.Request(
      text_L[: settings.prompt],
      settings.reply,
      sampling.Sampling(temperature=0, seed=number),
    )
  )
  while not one.events:
    engine.advance()
  begun = settings.clock()
  while one.reason is None:
    engine.advance()
  taken = settings.clock() - begun
  assert (one.result().tokens == text_L[settings.prompt :]).all()
  return taken
