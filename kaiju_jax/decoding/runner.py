"""Runs sequences in rounds: who joins, who draws, whose prompt goes on.

What waits for a token runs the rounds: there is no thread. A round is whole or
has not begun: Ctrl-C raises after it, so that sequences can go on or leave.
"""

from collections.abc import Callable

import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding import compiled
from kaiju_jax.decoding import decoder as decoder_lib
from kaiju_jax.decoding import interrupts
from kaiju_jax.decoding import request as request_lib
from kaiju_jax.decoding import rounds as rounds_lib
from kaiju_jax.decoding import schedule as schedule_lib
from kaiju_jax.decoding import sequence as sequence_lib
from kaiju_jax.decoding import stop


class Runner:
  """The sequences over one decoder's rows.

  Args:
    decoder: the model and its cache.
    tokenizer: the tokenizer that turns tokens into text; None for no text.
    chunk: prompt tokens of a round, at most.

  Attributes:
    decoder: the same.
    rounds: what runs on the device.
    schedule: which sequence is where.
  """

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    tokenizer: tokenizer_lib.Tokenizer | None,
    chunk: int,
  ):
    self.decoder = decoder
    self.rounds = compiled.Rounds(decoder, chunk)
    self.schedule = schedule_lib.Schedule()
    self._tokenizer = tokenizer
    self._abandoned: list[Callable[[], None]] = []
    self._count = 0

  def open(self, length: int) -> int:
    """Takes a row, once the rows of what was dropped are free.

    Raises:
      ValueError: no row could ever hold `length` tokens, or a length below 1.
      pages.Full: no row is free.
    """
    self._reap()
    return self.decoder.open(length)

  def abandon(self, end: Callable[[], None]) -> None:
    """Has `end` called when the next row is opened or the next round begins.

    For finalizers, which may run in the middle of a round.
    """
    self._abandoned.append(end)

  def check(
    self,
    request: request_lib.Request,
    name: str,
    history: sequence_lib.History | None = None,
  ) -> np.ndarray:
    """Returns the prompt as int32 [L].

    Raises:
      TypeError, ValueError: names the field that is wrong.
    """
    decoder = self.decoder
    length = decoder.length if history is None else self.left(history)
    tokens_L = request_lib.check(
      request, decoder.config.vocab_size, length, name
    )
    if request.stop_strings and self._tokenizer is None:
      raise ValueError(
        f'{name}.stop_strings={request.stop_strings!r}: the generator has no'
        ' tokenizer to find them with.'
      )
    return tokens_L

  def submit(
    self,
    request: request_lib.Request,
    history: sequence_lib.History | None = None,
  ) -> sequence_lib.Sequence:
    """Returns the request's sequence, which joins as soon as it fits.

    Args:
      request: what is asked.
      history: the history of the conversation whose next turn it is; None for a
        sequence with a row of its own.

    Raises:
      TypeError, ValueError: names the field that is wrong.
    """
    tokens_L = self.check(request, 'request', history)
    text = stop.Text(self._tokenizer, request.stop_tokens, request.stop_strings)
    self._count += 1
    sequence = sequence_lib.Sequence(
      self._count, request, tokens_L, text, history
    )
    with interrupts.held():
      if history is None:
        self.schedule.wait(sequence)
      else:
        history.last = sequence
        self._join(sequence, history.row)
        self.schedule.enter(sequence)
    return sequence

  def advance(self) -> None:
    """Runs a round.

    Raises:
      pages.Full: sequences wait, and no row will ever become free.
    """
    with interrupts.held():
      self._reap()
      full = self.schedule.admit(
        lambda sequence: self._join(
          sequence, self.decoder.open(sequence.length)
        )
      )
      if full is not None and not self.schedule.is_running:
        raise full
      # In this order, so that a first token waits for no further step.
      if self.schedule.going:
        self._draw_tokens()
      if self.schedule.is_prefilling:
        self._prefill_chunk()

  def cancel(self, sequence: sequence_lib.Sequence) -> None:
    """Ends a sequence that has not ended, and frees its row."""
    with interrupts.held():
      self._leave(sequence, 'cancelled')

  def left(self, history: sequence_lib.History) -> int:
    """Returns how many tokens a conversation has room for.

    Raises:
      ValueError: it is closed.
    """
    if history.row is None:
      raise ValueError('the conversation is closed: open another.')
    return self.decoder.room_of(history.row) - len(history.pending_L)

  def end(self, history: sequence_lib.History) -> None:
    """Ends a conversation, its last turn included, and frees its row; once."""
    if history.row is None:
      return
    with interrupts.held():
      if history.last is not None:
        self._leave(history.last, 'cancelled')
      row, history.row = history.row, None
      self.decoder.close(row)

  def score(self, row: int, tokens_L: np.ndarray) -> rounds_lib.Scores:
    """Appends tokens to an empty row; scores all but the first."""
    scored = []
    while len(tokens_L) > 1:
      _, scores, count = self.rounds.append(row, tokens_L, is_scored=True)
      scored.append((scores, min(count, len(tokens_L) - 1)))
      tokens_L = tokens_L[count:]
    return sequence_lib.joined(scored)

  def _reap(self) -> None:
    """Ends what nobody holds any more."""
    while self._abandoned:
      self._abandoned.pop()()

  def _join(self, sequence: sequence_lib.Sequence, row: int) -> None:
    sequence.row = row
    self.rounds.join(row, sequence.request.sampling)

  def _prefill_chunk(self) -> None:
    sequence = self.schedule.next_prompt()
    is_scored = sequence.request.scores_prompt
    last_BLD, scores, count = self.rounds.append(
      sequence.row, sequence.left_L, is_scored
    )
    if is_scored:
      sequence.scored.append((scores, min(count, len(sequence.left_L) - 1)))
    sequence.left_L = sequence.left_L[count:]
    if not len(sequence.left_L):
      self.schedule.go(sequence)
      (token,), (log_probability,) = self.rounds.first(sequence.row, last_BLD)
      self._take(sequence, token, log_probability)

  def _draw_tokens(self) -> None:
    going = list(self.schedule.going.values())
    token_R, log_probability_R = self.rounds.step([one.row for one in going])
    for one in going:
      self._take(one, token_R[one.row], log_probability_R[one.row])

  def _take(self, sequence, token, log_probability) -> None:
    """Gives a drawn token to its sequence, which may end by it."""
    if token < 0:
      sequence.error = sequence.bad_logits()
      self._leave(sequence, 'error')
      return
    reason = sequence.take(int(token), float(log_probability))
    if reason is not None:
      self._leave(sequence, reason)

  def _leave(self, sequence: sequence_lib.Sequence, reason: str) -> None:
    """Ends a sequence, wherever it is, and frees its row; once."""
    if sequence.reason is not None:
      return
    sequence.reason = reason
    self.schedule.remove(sequence)
    if sequence.history is not None:
      sequence.history.pending_L = sequence.pending_L()
    elif sequence.row is not None:
      self.decoder.close(sequence.row)
