"""Frozen Poisson arrivals, and the figures of serving them.

Requests come to a server as a Poisson process: the gaps between arrivals are
independent and exponential, so that requests bunch up as real ones do. The
arrivals are drawn before anything is served. A slow server therefore does not
slow its own load down (an open loop), and every server gets the same requests.

Each subject has random numbers of its own. The same seed at twice the rate
gives the same requests in half the time, and a longer load begins with the
shorter one. An infinite rate gives all requests at second 0, which is how
throughput is measured.

A server returns a `Timeline` per arrival. Nothing here knows any server.
"""

from collections.abc import Sequence
import dataclasses
import math
from typing import NamedTuple

import numpy as np


class Arrival(NamedTuple):
  """One request."""

  seconds: float  # When it comes, from the beginning of the load.
  tokens: np.ndarray  # Of the prompt, int32 [L].
  max_tokens: int  # How many the answer has; nothing stops it earlier.


class Timeline(NamedTuple):
  """How one request was served."""

  arrival: Arrival  # The request.
  # The answer, int32 [n]; empty where the request was refused.
  tokens: np.ndarray
  # When each of them was there, on the arrival's clock, float64 [n].
  seconds: np.ndarray


@dataclasses.dataclass(frozen=True)
class Load:
  """What arrivals are drawn from."""

  seed: int = 0  # Of every draw.
  # Mean requests per second; `math.inf` for all of them at second 0.
  rate: float = 1.0
  count: int = 64  # Requests.
  # Fewest and most tokens of a prompt, evenly on a logarithm.
  prompt: tuple[int, int] = (64, 512)
  # Fewest and most tokens of an answer, evenly on a logarithm.
  answer: tuple[int, int] = (32, 128)
  shared: int = 0  # Tokens at the beginning that all prompts have in common.
  vocabulary: int = 32_000  # Tokens are below it.

  def __post_init__(self) -> None:
    """Refuses a load that cannot be meant.

    Raises:
      ValueError: names the field, its value and what would be right.
    """
    if not self.rate > 0:
      raise ValueError(f'rate={self.rate}: must be above 0 per second.')
    for name in 'count', 'vocabulary':
      if getattr(self, name) < 1:
        raise ValueError(f'{name}={getattr(self, name)}: must be at least 1.')
    for name in 'prompt', 'answer':
      low, high = getattr(self, name)
      if not 1 <= low <= high:
        raise ValueError(f'{name}=({low}, {high}): must rise, from 1 on.')
    if not 0 <= self.shared < self.prompt[0]:
      raise ValueError(
        f'shared={self.shared}: must leave a token of the shortest prompt, of'
        f' {self.prompt[0]}, to itself.'
      )


def arrivals(load: Load) -> list[Arrival]:
  """Returns the requests, in the order in which they come."""
  gaps, prompts, answers = (
    np.random.default_rng((load.seed, subject)) for subject in range(3)
  )
  shared = _tokens(load, 3, 0, load.shared)
  drawn = []
  seconds = 0.0
  for number in range(load.count):
    seconds += gaps.standard_exponential() / load.rate
    own = _between(prompts, load.prompt) - load.shared
    drawn.append(
      Arrival(
        seconds,
        np.concatenate([shared, _tokens(load, 4, number, own)]),
        _between(answers, load.answer),
      )
    )
  return drawn


def _between(rng: np.random.Generator, ends: tuple[int, int]) -> int:
  """Returns a length of low ≤ length ≤ high, drawn evenly on a logarithm."""
  low, high = ends
  drawn = math.floor(math.exp(rng.uniform(math.log(low), math.log(high + 1))))
  # The logarithm's rounding may miss either end.
  return min(max(drawn, low), high)


def _tokens(load: Load, subject: int, number: int, count: int) -> np.ndarray:
  rng = np.random.default_rng((load.seed, subject, number))
  return rng.integers(0, load.vocabulary, count, np.int32)


class Figures(NamedTuple):
  """What was measured over some timelines.

  A percentile is a time that was measured: the least one that at least that
  part of all of them does not exceed. It is NaN where there is no time at all.
  """

  served: int  # Requests with at least one token.
  refused: int  # Requests without any.
  # Median seconds from a request's arrival to its first token.
  first_p50: float
  first_p99: float  # Their 99th percentile.
  between_p50: float  # Median seconds between two tokens of an answer.
  between_p99: float  # Their 99th percentile.
  # Tokens of all answers, over the seconds from the first arrival to the last
  # token.
  tokens_per_second: float


def figures(timelines: Sequence[Timeline]) -> Figures:
  """Returns the figures of a load's timelines."""
  served = [x for x in timelines if len(x.seconds)]
  first = np.array([x.seconds[0] - x.arrival.seconds for x in served])
  between = gaps(served)
  rate = 0.0
  if served:
    begin = min(x.arrival.seconds for x in served)
    end = max(x.seconds[-1] for x in served)
    rate = float(sum(len(x.seconds) for x in served) / (end - begin))
  return Figures(
    len(served),
    len(timelines) - len(served),
    percentile(first, 50),
    percentile(first, 99),
    percentile(between, 50),
    percentile(between, 99),
    rate,
  )


def gaps(timelines: Sequence[Timeline]) -> np.ndarray:
  """Returns the seconds between neighbouring tokens of the same answer."""
  return np.concatenate([np.zeros(0), *(np.diff(x.seconds) for x in timelines)])


def percentile(seconds: np.ndarray, percent: float) -> float:
  """Returns the least value that `percent` % of all do not exceed, or NaN."""
  if not len(seconds):
    return math.nan
  return float(np.percentile(seconds, percent, method='inverted_cdf'))
