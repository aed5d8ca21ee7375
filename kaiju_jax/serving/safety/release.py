"""What of a reply is shown while it streams: the hold-back.

The token head says after each token how likely the text up to and with it is to
violate each dimension. Per token:

    high    a dimension's score reaches its `high`: the reply ends here. What is
            held is never released; what was released stays.
    low     every score is below its dimension's `low`: this token and all held
            ones are released.
    middle  otherwise: the token is held, until a later one is low, or `hold`
            later ones have been judged and none was high.

So no token is released before its own score is known, and none comes later than
`hold` tokens. What is guaranteed: let a violation's first character be in token
a, and the first high score at token b ≥ a. If no score of a…b−1 is low and b −
a ≤ hold, no character of token a or behind it is released. (A low score says
that the text up to it violates nothing, and releases it; that is what makes
most text appear at once.) With any `hold`, and whatever the scores, nothing of
token b or behind it is released.

From source 000, the head; our guess, all of the above, and 8 tokens.
"""

import collections
from collections.abc import Callable
from collections.abc import Sequence
import math
from typing import NamedTuple

HOLD = 8


class Bound(NamedTuple):
  """A dimension's thresholds, see `thresholds.Limit`."""

  name: str
  low: float
  high: float


class Released(NamedTuple):
  """What one token brought.

  Attributes:
    text: what is shown now, '' for nothing.
    tokens: how many tokens that is, the oldest of those that were held first.
      Their log-probabilities may be shown; others say what is held.
    ended: whether the reply ends here, with finish_reason 'content_filter'.
  """

  text: str
  tokens: int
  ended: bool


class Violation(NamedTuple):
  """Why a reply ended.

  Attributes:
    dimension: which one is violated; '' where the score is missing.
    score: by how much; NaN where it is missing.
    token: at which token, from 0.
  """

  dimension: str
  score: float
  token: int


class Release:
  """One reply on its way out. Not for several threads at a time.

  Attributes:
    violation: see `Violation`; None while there is none.
    text: all text so far, what is held and what will never be shown included.
    shown: how many characters of it were released.
  """

  def __init__(
    self,
    bounds: Sequence[Bound] | None,
    hold: int = HOLD,
    stopped: Callable[['Release'], None] | None = None,
  ):
    """Starts with nothing.

    Args:
      bounds: thresholds per dimension, in the order of the scores. None for a
        server without moderation: all text is released at once.
      hold: how many tokens are held back at most.
      stopped: called once, with this reply, when it is found to violate.

    Raises:
      ValueError: `hold` is negative, there is no dimension, or low is above
        high.
    """
    if hold < 0:
      raise ValueError(f'hold={hold}: must be at least 0 tokens.')
    if bounds is not None and not bounds:
      raise ValueError('bounds: there must be at least one dimension.')
    for bound in bounds or ():
      if not bound.low <= bound.high:
        raise ValueError(f'{bound}: low must not be above high.')
    self._bounds = None if bounds is None else tuple(bounds)
    self._hold = hold
    self._stopped = stopped
    self._held: collections.deque[str] = collections.deque()
    self._pieces: list[str] = []
    self._is_finished = False
    self.violation: Violation | None = None
    self.shown = 0

  @property
  def text(self) -> str:
    return ''.join(self._pieces)

  @property
  def held(self) -> int:
    """How many tokens are held."""
    return len(self._held)

  def push(self, text: str, scores: Sequence[float] | None) -> Released:
    """Takes the next token.

    Args:
      text: its text; '' where it completes no character.
      scores: per dimension, of the text up to and with it. A score that is
        missing or NaN counts as high.

    Raises:
      RuntimeError: the reply has ended.
      ValueError: there are more or fewer scores than dimensions.
    """
    if self._is_finished:
      raise RuntimeError('the reply has ended; it takes no more tokens.')
    self._pieces.append(text)
    self._held.append(text)
    if self._bounds is None:
      return self._out(0)
    self.violation = self._judged(scores)
    if self.violation:
      self._is_finished = True
      self._held.clear()
      if self._stopped:
        self._stopped(self)
      return Released('', 0, True)
    is_low = all(
      score < bound.low for score, bound in zip(scores, self._bounds)
    )
    return self._out(0 if is_low else self._hold)

  def finish(self) -> Released:
    """Ends a reply that the model ended, and releases what is held.

    Its scores never became high. After a violation it releases nothing.
    """
    self._is_finished = True
    return self._out(0)

  def _judged(self, scores: Sequence[float] | None) -> Violation | None:
    token = len(self._pieces) - 1
    if scores is None:
      return Violation('', math.nan, token)
    if len(scores) != len(self._bounds):
      raise ValueError(
        f'{len(scores)} scores: must be one for each of'
        f' {[bound.name for bound in self._bounds]}.'
      )
    for score, bound in zip(scores, self._bounds):
      # By its negation, because every comparison with NaN is false.
      if not score < bound.high:
        return Violation(bound.name, float(score), token)
    return None

  def _out(self, keep: int) -> Released:
    count = max(0, len(self._held) - keep)
    text = ''.join(self._held.popleft() for _ in range(count))
    self.shown += len(text)
    return Released(text, count, False)
