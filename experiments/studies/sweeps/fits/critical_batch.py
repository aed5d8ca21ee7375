"""Finds the largest batch that costs no loss, at several places of one run.

From a checkpoint, branches train on equally many tokens with batches m times as
large, at √m times the rate. The critical batch is the largest m up to which
every loss stays within ε of that of m = 1 (arXiv 2505.23971; the sources say
only that batches were "warmed up gradually").
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.reporting import statistics


class Critical(NamedTuple):
  """The critical batch of one place."""

  largest: int  # The largest m within ε.
  # {m: mean relative excess over m = 1, paired by seed}.
  excess: dict[int, float]
  # {m: half the 95 % interval of the excess; NaN for one seed}.
  half_width: dict[int, float]
  # Reasons not to trust it, in words; empty if none are known.
  doubts: tuple[str, ...]


def critical(losses: Mapping[int, Sequence[float]], epsilon: float) -> Critical:
  """Returns the critical batch of one place.

  Args:
    losses: {m: loss of each seed}, with m = 1.
    epsilon: the relative loss that a larger batch may cost.
  """
  one = np.asarray(losses[1], float)
  relative = {m: np.asarray(losses[m], float) / one - 1 for m in sorted(losses)}
  excess = {m: float(x.mean()) for m, x in relative.items()}
  width = {m: statistics.half_width(x.tolist()) for m, x in relative.items()}
  largest = 1
  for m, value in excess.items():
    if not value <= epsilon:
      break
    largest = m
  doubts = []
  if lost := [m for m, value in excess.items() if not np.isfinite(value)]:
    doubts.append(f'{", ".join(map(str, lost))}: a run diverged')
  if largest == max(losses):
    doubts.append(f'{largest} is the largest batch tried: it may be larger')
  unsure = [
    m
    for m, value in excess.items()
    if m > 1 and abs(value - epsilon) < width[m]
  ]
  if unsure:
    names = ', '.join(map(str, unsure))
    doubts.append(f'{names}: more or less than ε within the seeds’ interval')
  return Critical(largest, excess, width, tuple(doubts))


def schedule(largest: Mapping[float, int], microbatches: int) -> str:
  """Returns a value of `optimizer.batch`, such as '0:4 0.5:8'; it never falls.

  Args:
    largest: {fraction of the run's tokens: critical m}.
    microbatches: those of m = 1, with which the run begins.
  """
  stages, count = [f'0:{microbatches}'], microbatches
  for at, m in sorted(largest.items()):
    if m * microbatches > count:
      count = m * microbatches
      stages.append(f'{at:g}:{count}')
  return ' '.join(stages)
