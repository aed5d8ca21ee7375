"""Generation: sequences join a cache's rows, go on together, and leave.

    several = generator.Generator(decoder, tokenizer)
    for event in several.stream(request): print(event.text, end='')
    results = several.generate(requests)          # a whole batch
    scores = several.score(tokens)                # for evaluation
    conversation = several.converse()             # turns of one text

This is the engine (`engine.py`) for a caller that waits: the one who reads a
token runs the rounds. Shapes never depend on which sequences are there, so that
joining and leaving compile nothing.

A sequence whose logits are no numbers ends with `BadLogits`, and the others go
on. A generator is for one thread.
"""

from collections.abc import Sequence

import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import judge as judge_lib
from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import conversation as conversation_lib
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import rounds
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.engine import stream as stream_lib
from kaiju_jax.decoding.requests import request as request_lib


class Generator:
  """Continues sequences over a decoder's rows.

  Args:
    decoder: the model and its cache, whose rows are the generator's alone.
    tokenizer: the tokenizer that turns tokens into text; None for no text.
    chunk: prompt tokens of a round, at most.
    isolates: whether a sequence's logits depend on its text alone, to the last
      bit. Otherwise prompts go on from what earlier texts left in the cache,
      and short ones share calls, which moves last bits in the fast mode.
    head: a token-level head, whose scores events and results carry; None for
      none.

  Attributes:
    engine: what runs the sequences.

  Raises:
    ValueError: a chunk without tokens, or a head of another model.
  """

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    tokenizer: tokenizer_lib.Tokenizer | None = None,
    chunk: int = 256,
    isolates: bool = False,
    head: judge_lib.Head | None = None,
  ):
    self._decoder = decoder
    self.engine = engine_lib.Engine(
      decoder, tokenizer, chunk=chunk, isolates=isolates, head=head
    )

  def stream(self, request: request_lib.Request) -> stream_lib.Stream:
    """Returns the request's tokens as they come; see `Stream`.

    The sequence joins as soon as a row is free for it (`schedule.py`).

    Raises:
      TypeError, ValueError: names the field that is wrong.
    """
    return stream_lib.Stream(self.engine, self.engine.submit(request))

  def generate(
    self, requests: Sequence[request_lib.Request]
  ) -> list[request_lib.Result]:
    """Returns all requests' results, in their order.

    One that ended with `BadLogits` has it as its `error`.

    Raises:
      TypeError, ValueError: names the request and the field that is wrong;
        then none has run.
      pages.Full: others hold the decoder's rows.
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

  def score(self, tokens: Sequence[int] | np.ndarray) -> rounds.Scores:
    """Returns the log-probability of every token but the first.

    To score a continuation, score prompt and continuation together and take
    the last entries.

    Args:
      tokens: L of them, at least one.

    Returns:
      numpy arrays of L − 1: the model's own log-probabilities, and whether
      each token was its likeliest.

    Raises:
      TypeError, ValueError: tokens outside the vocabulary, or too many.
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
    self.engine.reap()
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

  def converse(
    self, length: int | None = None
  ) -> conversation_lib.Conversation:
    """Begins a text whose turns follow each other; see `Conversation`.

    Args:
      length: tokens of all turns; by default what a row of the cache holds.

    Raises:
      ValueError: no row could ever hold it, or a length below 1.
    """
    length = self._decoder.length if length is None else length
    return conversation_lib.Conversation(self.engine, length)

  def warm(self, prompts: Sequence[int] | None = None) -> None:
    """Compiles what runs, so that no request waits for it.

    What scores a prompt compiles when it first runs.

    Args:
      prompts: the lengths of prompts that come one at a time and are not to be
        scored; any by default, several at once too.

    Raises:
      pages.Full: no row is free.
    """
    self.engine.warm(prompts)

  def advance(self) -> None:
    """Runs a round.

    Raises:
      pages.Full: sequences wait, and no row will ever become free.
    """
    self.engine.advance()

  def _scores(self, row: int, tokens_L: np.ndarray) -> rounds.Scores:
    """Appends tokens to an empty row; scores all but the first."""
    chunk, scored = self.engine.rounds.chunk, []
    for begin in range(0, len(tokens_L), chunk):
      part_L = tokens_L[begin : begin + chunk]
      next_L = tokens_L[begin + 1 : begin + 1 + chunk]
      ran = self.engine.rounds.score(compiled.Chunk(row, part_L), next_L)
      scored.append((ran.scores, slice(len(next_L))))
    return sequence_lib.concatenate_scores(scored)
