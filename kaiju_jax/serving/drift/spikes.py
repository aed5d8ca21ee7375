"""A filter of characters that have far more traffic than in the week before.

In one window a character counts for at most 10 times its share of the tokens of
the seven days before today (source 003), and for FLOOR at least, because a new
character has no past. Only what was counted is remembered: otherwise a spike
would raise its own bound within hours. Before a day of history there is no
filter. FLOOR and the bound of what is remembered are our guess.
"""

from collections.abc import Mapping
import dataclasses

TIMES = 10.0
DAYS = 7
FLOOR = 0.005
DAY = 86_400.0
# Characters that are remembered: those with the most tokens.
MOST = 20_000


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
    if len(here) > MOST:
      kept = sorted(here, key=here.get, reverse=True)[: MOST // 2]
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
