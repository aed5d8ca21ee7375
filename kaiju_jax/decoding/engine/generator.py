"""Blocking calls of an engine: reading a token runs the rounds.

    several = generator.Generator(decoder, tokenizer)
    for event in several.stream(request): print(event.text, end='')
    results = several.generate(requests)          # a whole batch
    scores = several.score(tokens)                # for evaluation
    conversation = several.converse()             # turns of one text

A sequence whose logits are no numbers ends with `BadLogits`, and the others go
on. A generator is for one thread.
"""

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from typing import Self
import uuid
import weakref

import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import rounds
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.requests import request as request_lib


class Stream:
  """The drawn tokens of one sequence, as an iterator of `Event`.

  Closing it, leaving its `with` or dropping it cancels the sequence and frees
  its row, at once or in the next round. Its iterator raises BadLogits, Late,
  the errors of a search, and pages.Full: no row will ever become free.
  """

  def __init__(
    self,
    engine: engine_lib.Engine,
    sequence: sequence_lib.Sequence,
  ):
    self._engine = engine
    self._sequence = sequence
    self._is_told = False
    self._dropped = weakref.finalize(
      self,
      engine.call_between_rounds,
      functools.partial(engine.cancel, sequence),
    )
    self._dropped.atexit = False

  def __iter__(self) -> Self:
    return self

  def __next__(self) -> request_lib.Event:
    sequence = self._sequence
    self._engine.read(sequence)
    while not sequence.events:
      # A caller that waits here for a row keeps the lease.
      self._engine.read(sequence)
      if sequence.error is not None and not self._is_told:
        self._is_told = True
        raise sequence.error
      if sequence.reason is not None:
        raise StopIteration
      self._engine.advance()
    return sequence.events.popleft()

  def close(self) -> None:
    """Cancels the sequence if it has not ended; the iterator stops."""
    self._dropped.detach()
    self._sequence.events.clear()
    self._engine.cancel(self._sequence)

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  @property
  def result(self) -> request_lib.Result:
    """The result so far; whole if its `reason` is not None."""
    return self._sequence.result()


class Dialogue:
  """A text to which each turn adds a prompt and an answer.

  All drawn tokens of a turn, the stop token included, belong to the next turn's
  text. A cancelled turn leaves what it had drawn; a prompt that was cut off
  goes on with the next turn. Between turns it holds no row: the text is resumed
  from the cache, and runs again as far as it was evicted.
  """

  def __init__(self, engine: engine_lib.Engine, length: int):
    """Starts empty; `length` is of all turns, a ValueError if no row has it."""
    if not 1 <= length <= engine.decoder.length:
      raise ValueError(
        f'length={length}: a row of this cache holds'
        f' 1…{engine.decoder.length} tokens.'
      )
    self._engine = engine
    self._length = length
    self._key = uuid.uuid4()
    self._last: sequence_lib.Sequence | None = None
    self._is_closed = False

  @property
  def tokens(self) -> np.ndarray:
    """The text so far, int32: all turns' prompts and answers."""
    if self._last is None:
      return np.zeros(0, np.int32)
    return self._last.text().tokens.copy()

  @property
  def left(self) -> int:
    """The most tokens of further turns; ValueError once it is closed."""
    if self._is_closed:
      raise ValueError('the conversation is closed: open another.')
    return self._length - len(self.tokens)

  def stream(self, request: request_lib.Request) -> Stream:
    """Returns the answer to a turn, whose tokens follow the text so far.

    `shared` and `cache_salt` are those of the first turn. Raises TypeError,
    ValueError: a field is wrong, the turn before has not ended, or the
    conversation is closed or another owner's; request.Busy: the engine takes
    none now.
    """
    left = self.left
    if self._last is not None and self._last.reason is None:
      raise ValueError(
        'the turn before has not ended: read its stream to the end, or close'
        ' it.'
      )
    prefix = request
    if self._last is not None:
      prefix, owner = self._last.request, self._last.request.owner
      if request.owner != owner:
        raise ValueError(
          f'request.owner={request.owner!r}: the conversation is that of'
          f' {owner!r}.'
        )
      request = dataclasses.replace(request, shared=0)
    tokens_L = self._engine.check(request, length=left)
    before = self.tokens
    whole = dataclasses.replace(
      request,
      tokens=np.concatenate([before, tokens_L]),
      shared=prefix.shared,
      cache_salt=prefix.cache_salt,
      conversation=self._key,
    )
    self._last = self._engine.submit(whole, len(before))
    return Stream(self._engine, self._last)

  def close(self) -> None:
    """Takes no further turn; cancels one that has not ended."""
    self._is_closed = True
    if self._last is not None:
      self._engine.cancel(self._last)

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()


class Generator:
  """An engine with blocking calls; it takes arguments as `engine.Engine`."""

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    tokenizer: tokenizer_lib.Tokenizer | None = None,
    **options: Any,
  ):
    self._decoder = decoder
    self.engine: engine_lib.Engine = engine_lib.Engine(
      decoder, tokenizer, **options
    )

  def stream(self, request: request_lib.Request) -> Stream:
    """Returns a request's tokens as they come; raises as `Engine.check`."""
    return Stream(self.engine, self.engine.submit(request))

  def generate(
    self, requests: Sequence[request_lib.Request]
  ) -> list[request_lib.Result]:
    """Returns all requests' results, in order; a failed one has its `error`.

    Raises TypeError, ValueError: a wrong field, before any has run; pages.Full:
    others hold the decoder's rows.
    """
    for index, one in enumerate(requests):
      self.engine.check(one, f'requests[{index}]')
    sequences = []
    try:
      for one in requests:
        sequences.append(self.engine.submit(one))
      while any(one.reason is None for one in sequences):
        for one in sequences:
          self.engine.read(one)
        self.advance()
    finally:
      for one in sequences:
        self.engine.cancel(one)
    return [one.result() for one in sequences]

  def forget(self) -> None:
    """Drops all texts of the cache from which a later one could go on."""
    self._decoder.account.tree.clear()

  def score(self, tokens: Sequence[int] | np.ndarray) -> rounds.Scores:
    """Returns the log-probability of every token but the first of L tokens.

    To score a continuation, score prompt and continuation together and take the
    last entries. They are numpy arrays of L − 1: the model's own
    log-probabilities, and whether each token was its likeliest. Raises
    TypeError, ValueError: tokens outside the vocabulary, none, or too many;
    BadLogits: the logits were no numbers; pages.Full: no row is free.
    """
    decoder = self._decoder
    tokens_L = request_lib.check_tokens(tokens, decoder.tokens, 'tokens')
    if len(tokens_L) > decoder.length:
      raise ValueError(
        f'tokens has {len(tokens_L)}: a row of the cache holds'
        f' {decoder.length}.'
      )
    self.engine.collect_abandoned()
    row = decoder.open(len(tokens_L))
    try:
      scores = self._scores(row, tokens_L)
    finally:
      decoder.close(row)
    is_bad_L = ~np.isfinite(scores.log_probability_L)
    if is_bad_L.any():
      raise request_lib.BadLogits(
        f'tokens[{int(is_bad_L.argmax()) + 1}]: the logits that score it hold'
        ' NaN or +inf.'
      )
    return scores

  def converse(self, length: int | None = None) -> Dialogue:
    """Starts a text in turns, of at most `length` tokens (all of a row's)."""
    length = self._decoder.length if length is None else length
    return Dialogue(self.engine, length)

  def warm(self, prompts: Sequence[int] | None = None) -> None:
    """Compiles what requests run, except scoring; see `Engine.warm`."""
    self.engine.warm(prompts)

  def advance(self) -> None:
    """Runs a round; see `Engine.advance`."""
    self.engine.advance()

  def _scores(self, row: int, tokens_L: np.ndarray) -> rounds.Scores:
    """Appends tokens to an empty row; scores all but the first."""
    chunk, scored = self.engine.rounds.chunk, []
    for begin in range(0, len(tokens_L), chunk):
      part_L = tokens_L[begin : begin + chunk]
      next_L = tokens_L[begin + 1 : begin + 1 + chunk]
      ran = self.engine.rounds.score(compiled.Chunk(row, part_L), next_L)
      scored.append((ran.scores, slice(len(next_L))))
    return rounds.concatenate(scored)
