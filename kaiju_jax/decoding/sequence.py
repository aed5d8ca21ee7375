"""A sequence on its way from request to result, and the text it belongs to."""

import collections
import dataclasses

import numpy as np

from kaiju_jax.decoding import request as request_lib
from kaiju_jax.decoding import rounds
from kaiju_jax.decoding import stop


@dataclasses.dataclass(eq=False)
class History:
  """The text of a conversation, which its turns share.

  Attributes:
    row: the cache row's index; None once the conversation is closed.
    pending_L: int32, tokens of the text that are not in the cache yet.
    last: the newest turn, or None before the first.
  """

  row: int | None
  pending_L: np.ndarray = dataclasses.field(
    default_factory=lambda: np.zeros(0, np.int32)
  )
  last: 'Sequence | None' = None


class Sequence:
  """One request, and what has come of it.

  Attributes:
    number: the number that messages call the sequence by.
    request: what was asked.
    history: the history of the conversation that it is a turn of, or None.
    left_L: int32, tokens to prefill: the prompt, in a turn behind what the
      history had pending.
    row: the cache row's index; None while the sequence waits for one.
    reason: why it ended (`request.Result`); None before.
    error: a `BadLogits`, or None.
    events: drawn tokens that nobody has read yet.
    scored: scores of the chunks, and how many entries of each count.
    overtaken: how many later sequences joined while it waited (`schedule.py`).
    passed: rounds in which another prompt's chunk ran instead.
  """

  def __init__(
    self,
    number: int,
    request: request_lib.Request,
    tokens_L: np.ndarray,
    text: stop.Text,
    history: History | None = None,
  ):
    pending_L = np.zeros(0, np.int32) if history is None else history.pending_L
    self.number = number
    self.request = request
    self.history = history
    self.left_L = np.concatenate([pending_L, tokens_L])
    self.row: int | None = None
    self.reason: str | None = None
    self.error: request_lib.BadLogits | None = None
    self.events: collections.deque[request_lib.Event] = collections.deque()
    self.scored: list[tuple[rounds.Scores, int]] = []
    self.overtaken = 0
    self.passed = 0
    self._before = len(pending_L)  # Scores of these tokens are not asked for.
    self._text = text
    self._tokens: list[int] = []
    self._pieces: list[str] = []
    self._log_probabilities: list[float] = []

  @property
  def length(self) -> int:
    """Tokens of the text that a row must have room for, before it joins."""
    return len(self.left_L) + self.request.max_tokens

  def take(self, token: int, log_probability: float) -> str | None:
    """Notes a drawn token; returns why it is the last, if it is."""
    piece = self._text.push(token)
    reason = self._text.reason
    self._tokens.append(token)
    if reason is None and len(self._tokens) == self.request.max_tokens:
      piece += self._text.finish()
      reason = self._text.reason or 'length'
    self._pieces.append(piece)
    self._log_probabilities.append(log_probability)
    self.events.append(request_lib.Event(token, piece, log_probability, reason))
    return reason

  def pending_L(self) -> np.ndarray:
    """Returns what the row's text lacks in the cache: int32."""
    if not self._tokens or self.error is not None:
      return self.left_L
    return np.array(self._tokens[-1:], np.int32)

  def bad_logits(self) -> request_lib.BadLogits:
    return request_lib.BadLogits(
      f'sequence {self.number}, in row {self.row}, step {len(self._tokens)}:'
      ' its logits hold NaN or +inf, or nothing but -inf, so that no token can'
      f' be drawn. It ends here, {len(self._tokens)} tokens after its prompt'
      f' of {len(self.request.tokens)}.'
    )

  def result(self) -> request_lib.Result:
    scores = None
    if self.request.scores_prompt:
      scores = joined(self.scored).log_probability_L[self._before :]
    return request_lib.Result(
      tokens=np.array(self._tokens, np.int32),
      text=''.join(self._pieces),
      log_probabilities=np.array(self._log_probabilities, np.float32),
      prompt_log_probabilities=scores,
      reason=self.reason,
      error=self.error,
    )


def joined(scored: list[tuple[rounds.Scores, int]]) -> rounds.Scores:
  """Returns the scores of chunks, as many of each as count, on the host."""
  return rounds.Scores(
    np.concatenate(
      [np.zeros(0, np.float32)]
      + [np.asarray(one.log_probability_L)[:count] for one, count in scored]
    ),
    np.concatenate(
      [np.zeros(0, bool)]
      + [np.asarray(one.is_likeliest_L)[:count] for one, count in scored]
    ),
  )
