"""Measures an engine's throughput, reuse, gaps and overload.

    throughput   tokens per second with many in flight, beside our own engine
                 with one at a time and beside peers
    reuse        the first token of a prompt that was seen, beside a new one's
    between      tokens of running answers while long prompts enter
    overload     first tokens of what is admitted at a multiple of the capacity,
                 and what becomes of the rest

All ratios are of one run: the contenders take turns, and each is given by its
best turn, because machines are shared and what disturbs only adds.
"""

from collections.abc import Callable
from collections.abc import Sequence
import math
import time
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.engine import admission
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.requests import request
from kaiju_jax.experiments.benchmarks.load_test import engine_serving
from kaiju_jax.experiments.benchmarks.load_test import load

Serve = Callable[[Sequence[load.Arrival]], list[load.Timeline]]


def throughput(
  contenders: dict[str, Serve],
  arrivals: Sequence[load.Arrival],
  turns: int,
) -> dict[str, load.Figures]:
  """Returns the figures of each contender's fastest turn."""
  best: dict[str, load.Figures] = {}
  for turn in range(turns):
    for name, serve in contenders.items():
      figures = load.figures(serve(arrivals))
      print(f'turn {turn}: {name}: {figures.tokens_per_second:.1f} tokens/s')
      before = best.setdefault(name, figures)
      if figures.tokens_per_second > before.tokens_per_second:
        best[name] = figures
  return best


class Reuse(NamedTuple):
  """Seconds to the first token, the least of the turns."""

  cold: float  # Of a new prompt.
  warm: float  # Of one that was seen but for its last tokens.
  reused: float  # The fraction of the warm prompt that did not run.


def reuse(
  engine: engine_lib.Engine, length: int, share: float, turns: int
) -> Reuse:
  """Measures a first token with and without the cache.

  Args:
    engine: idle.
    length: tokens of the prompt.
    share: the fraction of it that was seen.
    turns: how often both run.
  """
  rng = np.random.default_rng(0)
  cold, warm, reused = [], [], []
  vocabulary = engine.decoder.config.vocab_size
  for _ in range(turns):
    engine_serving.forget(engine)
    seen = rng.integers(0, vocabulary, int(share * length), np.int32)
    ends = rng.integers(0, vocabulary, (2, length - len(seen)), np.int32)
    for end_L, found in zip(ends, (cold, warm)):
      tokens = np.concatenate([seen, end_L])
      prompt = request.Request(tokens, 1, owner='a', shared=len(seen))
      begun = time.perf_counter()
      sequence = engine.submit(prompt)
      while sequence.reason is None:
        engine.advance()
      found.append(time.perf_counter() - begun)
    reused.append(sequence.reused / length)
  return Reuse(min(cold), min(warm), min(reused))


class Between(NamedTuple):
  """Seconds between two tokens of an answer."""

  quiet: float  # 99th percentile while nothing enters.
  entering: float  # 99th percentile while prompts enter.
  chunk: float  # Seconds of the longest chunk of such a prompt, alone.


def measure_gaps(
  engine: engine_lib.Engine, talking: int, prompt: int, tokens: int
) -> Between:
  """Measures what answers feel of long prompts.

  Args:
    engine: idle, with a row more than `talking`.
    talking: answers that run.
    prompt: tokens of each prompt that enters.
    tokens: of each answer in the quiet; as many follow while prompts enter.
  """
  rng = np.random.default_rng(1)
  vocabulary = engine.decoder.config.vocab_size

  def make_request(length: int, answer: int) -> request.Request:
    return request.Request(
      rng.integers(0, vocabulary, length, np.int32), answer
    )

  engine_serving.forget(engine)
  room = engine.decoder.length - 16
  answers = [engine.submit(make_request(16, room)) for _ in range(talking)]
  while not all(one.events for one in answers):
    engine.advance()
  quiet = [_time(engine.advance) for _ in range(tokens)]
  entering, prompts = [], []
  while len(entering) < tokens:
    if all(one.reason is not None for one in prompts):
      prompts = [engine.submit(make_request(prompt, 1))]
    entering.append(_time(engine.advance))
  for one in (*answers, *prompts):
    engine.cancel(one)
  alone, chunks = engine.submit(make_request(prompt, 1)), []
  while alone.reason is None:
    chunks.append(_time(engine.advance))
  return Between(
    load.percentile(np.array(quiet), 99),
    load.percentile(np.array(entering), 99),
    max(chunks),
  )


class Overload(NamedTuple):
  """What an engine does with more than it can serve."""

  figures: load.Figures  # Of what was admitted.
  refused_within: float  # Longest that a refusal took, in seconds.
  wait: tuple[float, float]  # Shortest and longest wait that refusals told.


def overload(
  engine: engine_lib.Engine,
  arrivals: Sequence[load.Arrival],
  wait: float,
) -> Overload:
  """Serves a load of which the engine refuses what would wait for too long."""
  before, engine.limits = engine.limits, admission.Limits(wait=wait)
  refusals: list[tuple[float, float]] = []
  submit = engine.submit

  def timed(new):
    begun = time.perf_counter()
    try:
      return submit(new)
    except request.Busy as busy:
      refusals.append((time.perf_counter() - begun, busy.seconds))
      raise

  engine.submit = timed
  try:
    timelines = engine_serving.serve(engine, arrivals)
  finally:
    del engine.submit
    engine.limits = before
  told = [seconds for _, seconds in refusals] or [math.nan]
  return Overload(
    load.figures(timelines),
    max((taken for taken, _ in refusals), default=0.0),
    (min(told), max(told)),
  )


def _time(function: Callable[[], None]) -> float:
  begun = time.perf_counter()
  function()
  return time.perf_counter() - begun
