"""The hold-back: delays a streamed reply's text until safety scores clear it.

To release text is to show it to the user. The token-level head scores the reply
after each token: per dimension (a kind of violation), the probability that the
text up to and including this token violates it. The hold-back classifies each
token by these scores:

    high    A score reaches its dimension's `high`. The reply ends here. Tokens
            that are held are never shown; text shown earlier stays.
    low     Every score is below its dimension's `low`. This token and all held
            tokens are released.
    middle  Neither. The token is held until a later token is low, or until
            `hold` later tokens have scores and none of them is high.

So each token waits for its own score, and for at most `hold` later tokens.

The guarantee: let a violation begin in token a, and let token b ≥ a be the
first high one. If none of the tokens a…b−1 is low, and b − a ≤ hold, then no
character of token a or of a later token is shown. For any `hold` and any
scores, no character of token b or of a later token is shown. A low token
releases text at once because its scores say that the text up to it violates
nothing; this is why most text appears without delay.

Source 000 describes the head. The rules above and 8 tokens are our guess.
"""

import collections
from collections.abc import Callable
from collections.abc import Sequence
import math
from typing import NamedTuple

HOLD = 8


class Bound(NamedTuple):
  """A dimension's two thresholds; `thresholds.Limit` says how they arise."""

  name: str
  low: float
  high: float


class Released(NamedTuple):
  """The text that one step releases."""

  text: str  # The text to show now; '' for none.
  # The number of tokens released, oldest first. Only their log-probabilities
  # may be shown; those of others would reveal held text.
  tokens: int
  # Whether the reply ends here, with finish_reason 'content_filter'.
  ended: bool


class Violation(NamedTuple):
  """The score that ended a reply."""

  dimension: str  # The violated dimension; '' where the scores are missing.
  score: float  # Its score; NaN where the scores are missing.
  token: int  # The index in the reply of the token that has this score, from 0.


class Release:
  """The hold-back of one reply; only one thread at a time may use it.

  Attributes:
    text: all text so far, including text that is held or will never be shown.
  """

  def __init__(
    self,
    bounds: Sequence[Bound] | None,
    hold: int = HOLD,
    stopped: Callable[['Release'], None] | None = None,
  ):
    """Prepares the hold-back of an empty reply.

    Args:
      bounds: thresholds per dimension, in the order of the scores. None
        releases all text at once, for a server without moderation.
      hold: the largest number of tokens to hold.
      stopped: `push` calls it once, with this object, when a score is high.

    Raises:
      ValueError: `hold` is negative, or a bound is missing or inverted.
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
    # Text that was shown before, and that the reply continues; '' for none.
    self.begun = ''
    self._pieces: list[str] = []
    self._is_finished = False
    # The `Violation` that ended the reply; None while there is none.
    self.violation: Violation | None = None
    self.shown: int = 0  # The number of its characters that were released.

  @property
  def text(self) -> str:
    return ''.join([self.begun, *self._pieces])

  @property
  def held(self) -> int:
    """The number of tokens that are held."""
    return len(self._held)

  def push(self, text: str, scores: Sequence[float] | None) -> Released:
    """Adds the reply's next token, and returns the text that this releases.

    Args:
      text: the token's text; '' where it completes no character.
      scores: per dimension, the score of the text up to and including this
        token. None, or a NaN in it, counts as high.

    Raises:
      RuntimeError: the reply has ended.
      ValueError: the numbers of scores and of dimensions differ.
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
    """Ends a reply that the model ended, and releases the held tokens.

    After a violation nothing is held, so nothing is released.
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
      # Negated, so that NaN counts as high: comparisons with NaN are false.
      if not score < bound.high:
        return Violation(bound.name, float(score), token)
    return None

  def _out(self, keep: int) -> Released:
    count = max(0, len(self._held) - keep)
    text = ''.join(self._held.popleft() for _ in range(count))
    self.shown += len(text)
    return Released(text, count, False)
