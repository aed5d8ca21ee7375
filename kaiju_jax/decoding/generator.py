"""Generation: sequences join a cache's rows, go on together, and leave.

    generator = generator_lib.Generator(decoder, tokenizer)
    for event in generator.stream(request): print(event.text, end='')
    results = generator.generate(requests)          # a whole batch
    scores = generator.score(tokens)                # for evaluation
    conversation = generator.converse()             # turns over one row

Work is done in rounds, and whoever waits for a token runs them. In a round
waiting sequences join free rows, all rows that go on draw a token, and one
chunk of one prompt is prefilled: a long prompt delays the others by a chunk a
token, not by itself. Shapes never depend on who is there, so that joining and
leaving compile nothing.

A sequence whose logits are no numbers ends with `BadLogits`, it alone. For one
thread.
"""

import collections
from collections.abc import Sequence
import functools
from typing import Self
import weakref

import jax
import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding import decoder as decoder_lib
from kaiju_jax.decoding import pages
from kaiju_jax.decoding import request as request_lib
from kaiju_jax.decoding import rounds
from kaiju_jax.decoding import sampling as sampling_lib
from kaiju_jax.decoding import stop

_SMALLEST_CHUNK = 8


class Generator:
  """Continues sequences over a decoder's rows.

  Args:
    decoder: the model and its cache, whose rows are the generator's alone.
    tokenizer: of the tokens; None for no text.
    chunk: prompt tokens of a round, at most. What is left of a prompt takes a
      quarter or a sixteenth of it where that will do.

  Raises:
    ValueError: a chunk without tokens; more tokens than the model knows.
  """

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    tokenizer: tokenizer_lib.Tokenizer | None = None,
    chunk: int = 256,
  ):
    if chunk < 1:
      raise ValueError(f'chunk={chunk}: must be at least 1.')
    self._decoder = decoder
    self._tokenizer = tokenizer
    self._sizes = sorted(
      {min(chunk, max(chunk // part, _SMALLEST_CHUNK)) for part in (16, 4, 1)}
    )
    self._state = jax.device_put(
      rounds.initial(decoder.rows, decoder.config.vocab_size),
      decoder.cache.length_R.sharding,
    )
    self._waiting: collections.deque[_Running] = collections.deque()
    self._prefilling: collections.deque[_Running] = collections.deque()
    self._going: dict[int, _Running] = {}
    self._abandoned: list[_Running] = []
    self._count = 0
    network = decoder.network
    self._join = decoder.jit(rounds.join, donate_argnums=0)
    self._step = decoder.jit(
      functools.partial(rounds.step, network), donate_argnums=(1, 2)
    )
    self._first = decoder.jit(
      functools.partial(rounds.first, network), donate_argnums=1
    )
    self._prefill = {
      is_scored: decoder.jit(
        functools.partial(rounds.prefill, network, is_scored),
        donate_argnums=(1, 2),
      )
      for is_scored in (False, True)
    }

  def stream(self, request: request_lib.Request) -> 'Stream':
    """Returns the request's tokens as they come; see `Stream`.

    The sequence joins as soon as a row is free.

    Raises:
      TypeError, ValueError: names the field that is wrong.
    """
    return Stream(self, self._submitted(request, 'request'))

  def generate(
    self, requests: Sequence[request_lib.Request]
  ) -> list[request_lib.Result]:
    """Returns all requests' results, in their order.

    One that ended with `BadLogits` has it as its `error`.

    Raises:
      TypeError, ValueError: names the request and the field that is wrong;
        then none has run.
      pages.Full: conversations hold the rows that it takes.
    """
    for index, one in enumerate(requests):
      self._check(one, f'requests[{index}]')
    sequences = [self._submitted(one, 'request') for one in requests]
    try:
      while any(one.reason is None for one in sequences):
        self.advance()
    finally:
      for one in sequences:
        self._leave(one, 'cancelled')
    return [one.result() for one in sequences]

  def score(self, tokens: Sequence[int] | np.ndarray) -> rounds.Scores:
    """Returns the log-probability of every token but the first.

    A continuation's, after its prompt: the last entries of both together.

    Args:
      tokens: L of them, at least one.

    Returns:
      numpy arrays of L − 1: the model's own log-probabilities, and whether
      each token was its likeliest.

    Raises:
      TypeError, ValueError: tokens that are none of the model's, or too many.
      BadLogits: the model gave no numbers.
      pages.Full: no row is free.
    """
    decoder = self._decoder
    tokens_L = request_lib.check_tokens(
      tokens, decoder.config.vocab_size, 'tokens'
    )
    if len(tokens_L) > decoder.length:
      raise ValueError(
        f'tokens has {len(tokens_L)}: a row of the cache holds'
        f' {decoder.length}.'
      )
    scored = []
    row = self._open(len(tokens_L))
    try:
      left_L = tokens_L
      while len(left_L) > 1:
        _, scores, count = self._append(row, left_L, is_scored=True)
        scored.append((scores, min(count, len(left_L) - 1)))
        left_L = left_L[count:]
    finally:
      decoder.close(row)
    scores = _joined(scored)
    is_bad_L = ~np.isfinite(scores.log_probability_L)
    if is_bad_L.any():
      raise request_lib.BadLogits(
        f'tokens[{int(is_bad_L.argmax()) + 1}]: the logits that score it hold'
        ' NaN or +inf.'
      )
    return scores

  def converse(self, length: int | None = None) -> 'Conversation':
    """Opens a row whose text stays between turns; see `Conversation`.

    Args:
      length: tokens of all turns; by default what a row of the cache holds.

    Raises:
      ValueError: no row could ever hold it.
      pages.Full: no row is free now.
    """
    return Conversation(self, length)

  def warm(self, prompts: Sequence[int] | None = None) -> None:
    """Compiles what requests will run, so that none of them waits for it.

    Args:
      prompts: the lengths of prompts that are not to be scored; any by default.
    """
    if prompts is None:
      sizes = set(self._sizes)
    else:
      sizes = set().union(*map(self._sizes_of, prompts))
    nothing_L = np.zeros(0, np.int32)
    row = self._open(1)
    try:
      self._join_row(row, sampling_lib.Sampling())
      for size in sizes:
        last_BLD, _ = self._run_chunk(row, nothing_L, nothing_L, size, False)
        self._run_first(row, last_BLD)
      self._run_step(())
    finally:
      self._decoder.close(row)

  def advance(self) -> None:
    """Runs a round.

    Raises:
      pages.Full: sequences wait, and no row will ever become free.
    """
    self._reap()
    full = self._admit()
    if full is not None and not self._prefilling and not self._going:
      raise full
    # In this order, so that a first token waits for no further step.
    if self._going:
      self._draw_tokens()
    if self._prefilling:
      self._prefill_chunk()

  def _open(self, length: int) -> int:
    self._reap()
    return self._decoder.open(length)

  def _reap(self) -> None:
    """Frees the rows of streams that nobody holds any more."""
    while self._abandoned:
      self._leave(self._abandoned.pop(), 'cancelled')

  def _check(self, request, name: str, length: int | None = None):
    if length is None:
      length = self._decoder.length
    vocab_size = self._decoder.config.vocab_size
    tokens_L = request_lib.check(request, vocab_size, length, name)
    if request.stop_strings and self._tokenizer is None:
      raise ValueError(
        f'{name}.stop_strings={request.stop_strings!r}: the generator has no'
        ' tokenizer to find them with.'
      )
    return tokens_L

  def _submitted(self, request, name: str, conversation=None) -> '_Running':
    length = None if conversation is None else conversation.left
    tokens_L = self._check(request, name, length)
    text = stop.Text(self._tokenizer, request.stop_tokens, request.stop_strings)
    self._count += 1
    running = _Running(self._count, request, tokens_L, text, conversation)
    if conversation is None:
      self._waiting.append(running)
    else:
      running.left_L = np.concatenate([conversation.pending_L, tokens_L])
      self._enter(running, conversation.row)
    return running

  def _admit(self) -> pages.Full | None:
    """Lets waiting sequences join, in their order, until there is no room."""
    while self._waiting:
      running = self._waiting[0]
      length = len(running.left_L) + running.request.max_tokens
      try:
        row = self._open(length)
      except pages.Full as full:
        return full
      self._waiting.popleft()
      self._enter(running, row)
    return None

  def _enter(self, running: '_Running', row: int) -> None:
    running.row = row
    self._join_row(row, running.request.sampling)
    self._prefilling.append(running)

  def _join_row(self, row: int, sampling: sampling_lib.Sampling) -> None:
    self._state = self._join(
      self._state,
      np.int32(row),
      sampling_lib.settings([sampling]),
      np.bool_(self._decoder.length_of(row) == 0),
    )

  def _prefill_chunk(self) -> None:
    running = self._prefilling[0]
    is_scored = running.request.scores_prompt
    last_BLD, scores, count = self._append(
      running.row, running.left_L, is_scored
    )
    if is_scored:
      running.scored.append((scores, min(count, len(running.left_L) - 1)))
    running.left_L = running.left_L[count:]
    if not len(running.left_L):
      self._prefilling.popleft()
      self._going[running.row] = running
      (token,), (log_probability,) = self._run_first(running.row, last_BLD)
      self._take(running, token, log_probability)

  def _append(self, row: int, left_L: np.ndarray, is_scored: bool):
    """Runs a chunk of a text; returns last hidden, scores and its length."""
    count = min(len(left_L), self._sizes[-1])
    size = self._size_of(count)
    last_BLD, scores = self._run_chunk(
      row, left_L[:count], left_L[1 : size + 1], size, is_scored
    )
    return last_BLD, scores, count

  def _size_of(self, count: int) -> int:
    return min(size for size in self._sizes if size >= count)

  def _sizes_of(self, length: int) -> set[int]:
    """Returns the chunks that a prompt runs in."""
    chunk = self._sizes[-1]
    whole = {chunk} if length >= chunk else set()
    return whole | (
      {self._size_of(length % chunk)} if length % chunk else set()
    )

  def _run_chunk(self, row, tokens_L, successors_L, size: int, is_scored: bool):
    count = len(tokens_L)
    # Padding is a token that the row holds, so that it breaks no whole row.
    padded_L = np.full(size, tokens_L[0] if count else 0, np.int32)
    padded_L[:count] = tokens_L
    next_L = np.zeros(size, np.int32)
    next_L[: len(successors_L)] = successors_L
    decoder = self._decoder
    decoder.cache, self._state, last_BLD, scores = self._prefill[is_scored](
      decoder.params,
      decoder.cache,
      self._state,
      np.int32(row),
      padded_L,
      next_L,
      np.int32(count),
    )
    decoder.account([row], [count])
    return last_BLD, scores

  def _run_first(self, row: int, last_BLD) -> tuple[np.ndarray, np.ndarray]:
    decoder = self._decoder
    self._state, packed = self._first(
      decoder.params,
      self._state,
      np.int32(row),
      np.int32(decoder.length_of(row)),
      last_BLD,
    )
    return rounds.unpacked(packed)

  def _draw_tokens(self) -> None:
    rows = list(self._going)
    token_R, log_probability_R = self._run_step(rows)
    for row in rows:
      self._take(self._going[row], token_R[row], log_probability_R[row])

  def _run_step(self, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    decoder = self._decoder
    count_R = np.zeros(decoder.rows, np.int32)
    for row in rows:
      count_R[row] = 1
    decoder.cache, self._state, packed = self._step(
      decoder.params, decoder.cache, self._state, count_R
    )
    decoder.account(range(decoder.rows), count_R)
    return rounds.unpacked(packed)

  def _take(self, running: '_Running', token, log_probability) -> None:
    """Gives a drawn token to its sequence, which may end by it."""
    if token < 0:
      running.error = running.bad_logits()
      self._leave(running, 'error')
      return
    reason = running.take(int(token), float(log_probability))
    if reason is not None:
      self._leave(running, reason)

  def _leave(self, running: '_Running', reason: str) -> None:
    """Ends a sequence, wherever it is, and frees its row; once."""
    if running.reason is not None:
      return
    running.reason = reason
    for queue in self._waiting, self._prefilling:
      if running in queue:
        queue.remove(running)
    if running.row is not None:
      self._going.pop(running.row, None)
    if running.conversation is not None:
      running.conversation.pending_L = running.pending_L()
    elif running.row is not None:
      self._decoder.close(running.row)


class Stream:
  """The drawn tokens of one sequence, as an iterator of `Event`.

  Closing it, leaving its `with` or dropping it cancels the sequence; its row
  is free for the next one, at once or in the next round.

  Raises:
    BadLogits: from the iterator, where the model gave no numbers.
    pages.Full: from the iterator, where no row will ever become free.
  """

  def __init__(self, generator: Generator, running: '_Running'):
    self._generator = generator
    self._running = running
    self._is_told = False
    # It may be dropped in the middle of a round: the next one sees to it.
    self._dropped = weakref.finalize(self, generator._abandoned.append, running)
    self._dropped.atexit = False

  def __iter__(self) -> Self:
    return self

  def __next__(self) -> request_lib.Event:
    running = self._running
    while not running.events:
      if running.error is not None and not self._is_told:
        self._is_told = True
        raise running.error
      if running.reason is not None:
        raise StopIteration
      self._generator.advance()
    return running.events.popleft()

  def close(self) -> None:
    """Cancels what has not ended; the iterator stops."""
    self._dropped.detach()
    self._running.events.clear()
    self._generator._leave(self._running, 'cancelled')

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_) -> None:
    self.close()

  @property
  def result(self) -> request_lib.Result:
    """What there is so far; whole where its `reason` is not None."""
    return self._running.result()


class Conversation:
  """Turns over one row: what was said stays in the cache.

  Each turn prefills its own tokens alone, and what it draws belongs to the
  text of the next, the stop token included. A cancelled turn leaves what it
  had drawn; a prompt that was cut off goes on with the next turn.

  Attributes:
    row: of the cache.
    pending_L: int32, tokens of the text that are not in the cache yet.
  """

  def __init__(self, generator: Generator, length: int | None = None):
    decoder = generator._decoder
    self._generator = generator
    self._length = decoder.length if length is None else length
    self._last: _Running | None = None
    self.row = generator._open(self._length)
    self.pending_L = np.zeros(0, np.int32)

  @property
  def left(self) -> int:
    """How many tokens further turns may have, prompts and answers."""
    held = self._generator._decoder.length_of(self.row)
    return self._length - held - len(self.pending_L)

  def stream(self, request: request_lib.Request) -> Stream:
    """Returns the answer to a turn; see `Stream`.

    Raises:
      TypeError, ValueError: names the field that is wrong; the turn before has
        not ended, or the conversation is closed.
    """
    self._refuse_busy()
    self._last = self._generator._submitted(request, 'request', self)
    return Stream(self._generator, self._last)

  def close(self) -> None:
    """Frees the row; cancels a turn that has not ended."""
    if self.row is None:
      return
    if self._last is not None:
      self._generator._leave(self._last, 'cancelled')
    self._generator._decoder.close(self.row)
    self.row = None

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def _refuse_busy(self) -> None:
    if self.row is None:
      raise ValueError('the conversation is closed: open another.')
    if self._last is not None and self._last.reason is None:
      raise ValueError(
        'the turn before has not ended: read its stream to the end, or close'
        ' it.'
      )


class _Running:
  """One sequence on its way from request to result."""

  def __init__(
    self,
    number: int,
    request: request_lib.Request,
    tokens_L: np.ndarray,
    text: stop.Text,
    conversation: Conversation | None,
  ):
    self.number = number
    self.request = request
    self.conversation = conversation
    self.left_L = tokens_L  # Of the prompt, not in the cache yet.
    self.row: int | None = None
    self.reason: str | None = None
    self.error: request_lib.BadLogits | None = None
    self.events: collections.deque[request_lib.Event] = collections.deque()
    self.scored: list[tuple[rounds.Scores, int]] = []
    self._text = text
    self._tokens: list[int] = []
    self._pieces: list[str] = []
    self._log_probabilities: list[float] = []

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
    return request_lib.Result(
      tokens=np.array(self._tokens, np.int32),
      text=''.join(self._pieces),
      log_probabilities=np.array(self._log_probabilities, np.float32),
      prompt_log_probabilities=_joined(self.scored).log_probability_L
      if self.request.scores_prompt
      else None,
      reason=self.reason,
      error=self.error,
    )


def _joined(scored: list[tuple[rounds.Scores, int]]) -> rounds.Scores:
  """Returns the scores of chunks, of each as many as count, on the host."""
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
