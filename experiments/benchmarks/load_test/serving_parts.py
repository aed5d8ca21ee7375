"""Measures a server's throughput, reuse, gaps, overload and host time.

    throughput   tokens per second with many in flight, beside our own engine
                 with one at a time and beside peers
    reuse        the first token of a prompt that was seen, beside a new one's
    between      tokens of running answers while long prompts enter
    overload     first tokens of what is admitted at a multiple of the capacity,
                 and what becomes of the rest
    host         processor time of a round beside the calls of the device

All ratios are of one run: the contenders take turns, and each is given by its
best turn, because machines are shared and what disturbs only adds.
"""

from collections.abc import Callable
from collections.abc import Sequence
import math
import time
from typing import NamedTuple

import jax
import numpy as np

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import admission
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.requests import request
from kaiju_jax.experiments.benchmarks.load_test import engine_serving
from kaiju_jax.experiments.benchmarks.load_test import load
from kaiju_jax.experiments.benchmarks.load_test import peer_model
from kaiju_jax.model import transformer
from kaiju_jax.reporting import report
from kaiju_jax.training import state

Serve = Callable[[Sequence[load.Arrival]], list[load.Timeline]]


def throughput(
  contenders: dict[str, Serve],
  arrivals: Sequence[load.Arrival],
  turns: int,
  said: Callable[[str], None] = print,
) -> dict[str, load.Figures]:
  """Returns the figures of each contender's fastest turn."""
  best: dict[str, load.Figures] = {}
  for turn in range(turns):
    for name, serve in contenders.items():
      figures = load.figures(serve(arrivals))
      said(f'turn {turn}: {name}: {figures.tokens_per_second:.1f} tokens/s')
      before = best.setdefault(name, figures)
      if figures.tokens_per_second > before.tokens_per_second:
        best[name] = figures
  return best


def table(title: str, best: dict[str, load.Figures]) -> report.Table:
  """Returns the figures of each contender as a row."""
  return report.Table(
    [
      (
        name,
        f'{x.tokens_per_second:.1f}',
        f'{x.first_p50:.2f}',
        f'{1e3 * x.between_p50:.1f}',
        f'{1e3 * x.between_p99:.1f}',
      )
      for name, x in best.items()
    ],
    ('server', 'tokens/s', 'first p50, s', 'between p50, ms', 'p99, ms'),
    title,
  )


class Reuse(NamedTuple):
  """Seconds to the first token, the least of the turns.

  Attributes:
    cold: of a new prompt.
    warm: of one that was seen but for its last tokens.
    reused: the fraction of the warm prompt that did not run.
  """

  cold: float
  warm: float
  reused: float


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
  """Seconds between two tokens of an answer.

  Attributes:
    quiet: 99th percentile while nothing enters.
    entering: 99th percentile while prompts enter.
    chunk: seconds of the longest chunk of such a prompt, alone.
  """

  quiet: float
  entering: float
  chunk: float


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
  """What an engine does with more than it can serve.

  Attributes:
    figures: of what was admitted.
    refused_within: longest that a refusal took, in seconds.
    wait: shortest and longest wait that refusals told.
  """

  figures: load.Figures
  refused_within: float
  wait: tuple[float, float]


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


class Host(NamedTuple):
  """Processor milliseconds of the host per round, beside the device's calls.

  Attributes:
    drawing: while all rows draw, and nothing waits.
    waiting: while one row draws, and long prompts wait for pages.
  """

  drawing: float
  waiting: float


def measure_host(rows: int, waiting: int, prompt: int, rounds: int) -> Host:
  """Measures a round's work on the host, over calls that take no time.

  Args:
    rows: sequences that draw.
    waiting: prompts that find rows, but too few pages.
    prompt: tokens of each.
    rounds: how many are measured; their mean is returned.
  """
  rng = np.random.default_rng(2)

  def submit(engine, number: int, length: int, answer: int) -> None:
    shared = length // 64
    tokens = rng.integers(0, 64, length, np.int32)
    tokens[:shared] = 1  # All begin alike.
    owner = f'user {number}'
    engine.submit(request.Request(tokens, answer, owner=owner, shared=shared))

  found = []
  for running, behind, length in (rows, 0, 64), (1, waiting, prompt):
    engine, device = _hollow_engine(rows, length + rounds + 64, running)
    for number in range(running):
      submit(engine, number, length, rounds + 64)
    while engine.load().prompt:
      engine.advance()
    for number in range(behind):
      submit(engine, number + running, length, rounds)
    for _ in range(8):
      engine.advance()
    device.repeats = True
    begun = time.thread_time()
    for _ in range(rounds):
      engine.advance()
    taken = time.thread_time() - begun
    found.append(1e3 * taken / rounds)
  return Host(*found)


class _Hollow:
  """Stands for the held cache: calls take no time, and return zeros.

  With `repeats`, each call returns what the one before it did.
  """

  def __init__(self, cache):
    self.cache, self.is_lost, self.repeats = cache, False, False
    self._last = None
    self._known = {}

  def replace(self, function, params, *arguments):
    if not self.repeats:
      key = id(function), *map(np.shape, jax.tree.leaves(arguments))
      if key not in self._known:
        shapes, _ = jax.eval_shape(function, params, self.cache, *arguments)
        self._known[key] = shapes
      shapes = self._known[key]
      self._last = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    return self._last


def _hollow_engine(rows: int, length: int, running: int):
  """Returns an engine with pages for so many texts, and its device."""
  config = peer_model.config(
    vocab_size=64,
    d_model=16,
    num_layers=2,
    num_heads=1,
    head_dim=16,
    d_ff=16,
    max_length=length,
    period=2,
  )
  decoder = decoder_lib.Decoder(
    state.init_params(transformer.Transformer(config), 0),
    config,
    rows=rows,
    length=length,
    page_counts={'global': running * -(-length // 64) + 16},
  )
  decoder._held = _Hollow(decoder.cache)
  return engine_lib.Engine(decoder), decoder._held


def _time(function: Callable[[], None]) -> float:
  begun = time.perf_counter()
  function()
  return time.perf_counter() - begun
