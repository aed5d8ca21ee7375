"""Decides which traffic calibration counts: a freeze, and a filter of spikes.

Each window is judged by KL(window ‖ baseline), of tokens and of codes apart. It
stands out if

    log KL > median + 3 σ,    σ = the 84th percentile − the median

over the quiet windows of the last week, and calibration freezes once two of
three windows stand out, because quiet traffic puts single windows beyond any
bound: KL is a sum of squares, so that its upper tail is longer than a normal
distribution's and a plain mean + 3 σ of KL freezes ten times as often as 3 σ
promise (`experiments/results/drift.md`). The logarithm removes most of the
skew, and percentiles what strange windows did to the history; one that stands
out never enters it. So that slow drift does not raise the bar with itself, the
threshold may rise to RISE times its first value and no more.

Source 003 says: KL of tokens (B), or of scales (runbook 3), more than 3 σ by
historical variance: freeze, and alert. All else is our guess.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math

import numpy as np

from kaiju_jax.serving.drift import histograms

SIGMAS = 3.0
# Windows of the history: the fewest before any is judged, and those of a week
# of three minutes each.
LEAST, MOST = 80, 3_360
# The largest threshold over the first one.
RISE = 4.0
# Windows of which so many that stand out freeze; and quiet ones until it thaws.
OF, ENOUGH, CALM = 3, 2, 20
# σ of a standard normal distribution lies at this share.
_UPPER = 0.8413
_TINY = 1e-12
# Of the filter; a day is that of Unix time.
TIMES = 10.0
DAYS = 7
FLOOR = 0.005
DAY = 86_400.0
# Characters that are remembered: those with the most tokens.
REMEMBERED = 20_000


class Series:
  """The history of one divergence."""

  def __init__(self, history: Sequence[float] = (), first: float | None = None):
    self.history = list(history)  # Log KL of quiet windows, the oldest first.
    # The threshold of the first LEAST of all, log KL; None before it.
    self.first = first

  @property
  def threshold(self) -> float:
    """The largest quiet KL, nats; infinite before there is a history."""
    if self.first is None:
      return math.inf
    most = self.first + math.log(RISE)
    return math.exp(min(_threshold(self.history), most))

  def add(self, value: float) -> None:
    """Takes the KL of a quiet window."""
    self.history: list[float] = [
      *self.history[1 - MOST :],
      math.log(max(value, _TINY)),
    ]
    if self.first is None and len(self.history) >= LEAST:
      self.first = _threshold(self.history)


class Guard:
  """Judges windows."""

  def __init__(self):
    # tokens, codes: the histories.
    self.tokens: Series = Series()
    self.codes: Series = Series()
    self.is_frozen = False  # Whether calibration stands still.
    self._latest: list[bool] = []

  def judge(self, found: histograms.Divergence) -> bool:
    """Takes the next window; returns whether it is quiet."""
    series = self.tokens, self.codes
    stands_out = any(
      value > one.threshold for one, value in zip(series, found, strict=True)
    )
    if not stands_out:
      for one, value in zip(series, found):
        one.add(value)
    self._latest = [*self._latest, stands_out][-CALM:]
    if sum(self._latest[-OF:]) >= ENOUGH:
      self.is_frozen = True
    elif len(self._latest) == CALM and not any(self._latest):
      self.is_frozen: bool = False
    return not stands_out


@dataclasses.dataclass
class Shares:
  """Tokens of each character by day."""

  # Unix seconds of the first window; None before it.
  began: float | None = None
  # By day's number, tokens by character.
  days: dict[int, dict[bytes, float]] = dataclasses.field(default_factory=dict)

  def add(self, tokens: Mapping[bytes, float], now: float) -> None:
    """Takes a window's counted tokens by character."""
    if self.began is None:
      self.began = now
    today = int(now // DAY)
    for day in [day for day in self.days if day < today - DAYS]:
      del self.days[day]
    here = self.days.setdefault(today, {})
    for character, count in tokens.items():
      here[character] = here.get(character, 0.0) + count
    if len(here) > REMEMBERED:
      kept = sorted(here, key=here.get, reverse=True)[: REMEMBERED // 2]
      self.days[today] = {character: here[character] for character in kept}

  def weigh(
    self, tokens: Mapping[bytes, float], now: float
  ) -> dict[bytes, float]:
    """Returns what each character of a window counts for, 0 to 1.

    With these weights no character has more than its bound of what is counted,
    where the others have enough tokens to fill the rest.
    """
    today = int(now // DAY)
    days = [counts for day, counts in self.days.items() if day < today]
    if not days or now - self.began < DAY:
      return dict.fromkeys(tokens, 1.0)
    total = sum(sum(day.values()) for day in days)
    bounds = {}
    for character in tokens:
      seen = sum(day.get(character, 0.0) for day in days)
      bounds[character] = min(max(TIMES * seen / total, FLOOR), 1.0)
    capped: set[bytes] = set()
    while True:
      others = sum(n for x, n in tokens.items() if x not in capped)
      if not others:
        # All are cut: then as their bounds say.
        counted = min(n / bounds[x] for x, n in tokens.items())
        break
      counted = others / (1 - sum(bounds[x] for x in capped))
      more = {
        x
        for x, n in tokens.items()
        if x not in capped and n > bounds[x] * counted
      }
      if not more:
        break
      capped |= more
    return {
      x: bounds[x] * counted / n if x in capped else 1.0
      for x, n in tokens.items()
    }


def _threshold(history: Sequence[float]) -> float:
  """Returns median + 3 σ of log KL."""
  middle, upper = np.quantile(history, (0.5, _UPPER))
  return float(middle + SIGMAS * (upper - middle))
