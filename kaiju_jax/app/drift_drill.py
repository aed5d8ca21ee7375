"""Plays quiet windows and a spike to the guard, the filter, both and neither.

A window has 128 pages of conversations with characters whose popularity is
Zipf's, goes up and down with the day, each at an hour of its own, and wanders.
A spike multiplies the traffic of one character, who writes in another script.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.app import drift_pages
from kaiju_jax.evaluation.gate import divergence
from kaiju_jax.evaluation.gate import reader as reader_lib
from kaiju_jax.serving.drift import guard as guard_lib
from kaiju_jax.serving.drift import histograms
from kaiju_jax.serving.drift import monitor as monitor_lib
from kaiju_jax.serving.drift import spikes

DAY = int(spikes.DAY / monitor_lib.SECONDS)
# Popularity goes up and down by half in a day, and wanders by a factor of
# e^±.3 within two days; our guess.
_TIDE, _WANDER, _DAYS = 0.5, 0.3, 2
# The first window of a spike, when the filter has a day of history, and how
# many it lasts: a day. A checkpoint becomes the served limits at once.
QUIET, SPIKE, CHECKPOINT = DAY + 160, DAY, 80
ARMS = {
  'neither': (False, False),
  'filter': (False, True),
  'guard': (True, False),
  'both': (True, True),
}


class Traffic:
  """Draws windows.

  Args:
    home: each character's pages.
    foreign: the pages of the one whose traffic rises.
    share: of that character's traffic in quiet windows.
    seed: of all draws.
  """

  def __init__(
    self,
    home: Sequence[Sequence[drift_pages.Page]],
    foreign: Sequence[drift_pages.Page] = (),
    share: float = 0.0,
    seed: int = 0,
  ):
    self._pages, self._foreign, self._share = home, foreign, share
    self._random = np.random.default_rng((seed, 31))
    count = len(home)
    self._popular = 1 / np.arange(1, count + 1)
    self._hour = self._random.random(count) * 2 * np.pi
    self._wandered = np.zeros(count)
    self._number = 0

  def draw(self, times: float = 1.0) -> list[drift_pages.Page]:
    """Returns the next window's pages, with `times` the foreign traffic."""
    keeps = np.exp(-1 / (_DAYS * DAY))
    noise = self._random.normal(size=len(self._wandered))
    self._wandered *= keeps
    self._wandered += _WANDER * np.sqrt(1 - keeps**2) * noise
    tide = np.sin(2 * np.pi * self._number / DAY + self._hour)
    weights = self._popular * np.exp(self._wandered) * (1 + _TIDE * tide)
    self._number += 1
    odds = times * self._share / (1 - self._share)
    is_foreign = self._random.random(monitor_lib.PAGES) < odds / (1 + odds)
    who = self._random.choice(
      len(weights), monitor_lib.PAGES, p=weights / weights.sum()
    )
    sources = [
      self._foreign if other else self._pages[n]
      for n, other in zip(who, is_foreign)
    ]
    places = self._random.random(monitor_lib.PAGES)
    return [one[int(x * len(one))] for one, x in zip(sources, places)]


class Quiet(NamedTuple):
  """Windows without a spike.

  Attributes:
    windows: how many were judged.
    stood_out: how many stood out.
    frozen: how often the guard froze.
    contrasts: by name, how many windows other rules would freeze.
  """

  windows: int
  stood_out: int
  frozen: int
  contrasts: dict[str, int]


def play_quiet(traffic: Traffic, limits: np.ndarray, windows: int) -> Quiet:
  """Plays as many windows behind those that the guard learns from."""
  monitor = monitor_lib.Monitor(limits)
  learned = monitor_lib.BASELINE + guard_lib.LEAST
  found, stood_out, frozen, was = [], 0, 0, False
  for number in range(learned + windows):
    samples = [page.encode(limits) for page in traffic.draw()]
    one = monitor.close(samples, number * monitor_lib.SECONDS)
    if number >= monitor_lib.BASELINE:
      found.append(one.divergence)
    if number >= learned:
      stood_out += not one.is_quiet
      frozen += monitor.guard.is_frozen and not was
      was = monitor.guard.is_frozen
  values = np.array(found)
  contrasts = {
    'mean + 3 σ of KL, one window': _freeze_plainly(values),
    'mean + 3 σ of log KL, one window': _freeze_plainly(np.log(values)),
  }
  return Quiet(windows, stood_out, frozen, contrasts)


def _freeze_plainly(values: np.ndarray) -> int:
  """Returns the windows of [n, 2] that either mean + 3 σ would freeze."""
  histories = [list(column[: guard_lib.LEAST]) for column in values.T]
  count = 0
  for pair in values[guard_lib.LEAST :]:
    is_above = False
    for history, value in zip(histories, pair):
      kept = np.array(history[-guard_lib.MOST :])
      is_above |= bool(value > kept.mean() + guard_lib.SIGMAS * kept.std())
    if not is_above:
      for history, value in zip(histories, pair):
        history.append(value)
    count += is_above
  return count


class Spiked(NamedTuple):
  """A day of a spike.

  Attributes:
    frozen_after: windows until the guard froze; None if it did not.
    limits: those that were served at its end.
    checkpoints: how often new limits were served.
    rail: the share of codes of home and of foreign pages at their rail.
  """

  frozen_after: int | None
  limits: np.ndarray
  checkpoints: int
  rail: tuple[float, ...]


def play_spike(
  traffic: Traffic,
  limits: np.ndarray,
  arm: str,
  times: float = 50.0,
  quiet: int = QUIET,
  spike: int = SPIKE,
  pages: Sequence[Sequence[drift_pages.Page]] = (),
) -> Spiked:
  """Plays a spike behind quiet windows; each checkpoint is served at once.

  Args:
    traffic: the windows.
    limits: those that are served before the spike.
    arm: one of ARMS.
    times: by how much the character's traffic rises.
    quiet, spike: windows before and during it.
    pages: home and foreign pages of other conversations, to count what is
      cut.
  """
  monitor = monitor_lib.Monitor(limits, *ARMS[arm])
  frozen_after, checkpoints = None, 0
  for number in range(quiet + spike):
    in_spike = number - quiet
    drawn = traffic.draw(times if in_spike >= 0 else 1.0)
    samples = [page.encode(limits) for page in drawn]
    monitor.close(samples, number * monitor_lib.SECONDS)
    is_frozen = ARMS[arm][0] and monitor.guard.is_frozen
    if in_spike >= 0 and is_frozen and frozen_after is None:
      frozen_after = in_spike + 1
    is_due = in_spike >= 0 and (in_spike + 1) % CHECKPOINT == 0
    if is_due and not is_frozen:
      limits = monitor.propose()
      checkpoints += 1
      # Codes of the new limits mean other values.
      monitor.limits = limits
      monitor.recent.decay(0.0)
  rail = tuple(measure_rail(one, limits) for one in pages)
  return Spiked(frozen_after, limits, checkpoints, rail)


def measure_rail(
  pages: Sequence[drift_pages.Page], limits: np.ndarray
) -> float:
  """Returns the share of codes at the rail."""
  codes = np.stack([page.encode(limits).codes for page in pages])
  return float((codes == histograms.RAIL).mean())


def compare(
  first: reader_lib.Reader,
  second: reader_lib.Reader,
  texts: Sequence[np.ndarray],
) -> divergence.Summary:
  """Returns how far the second model's next tokens are from the first's."""
  return divergence.summarize(
    [
      divergence.compare(first.read(x).logits, second.read(x).logits, x)
      for x in texts
    ]
  )
