"""Generation for a caller that waits: reading a token runs the rounds.

    several = generator.Generator(decoder, tokenizer)
    for event in several.stream(request): print(event.text, end='')
    results = several.generate(requests)          # a whole batch
    scores = several.score(tokens)                # for evaluation
    conversation = several.converse()             # turns of one text

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
from kaiju_jax.decoding.engine import stream as stream_lib
from kaiju_jax.decoding.requests import request as request_lib


class Generator:
  """An engine with blocking calls; it takes arguments as `engine.Engine`."""

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    tokenizer: tokenizer_lib.Tokenizer | None = None,
    chunk: int = 256,
    isolates: bool = False,
    head: judge_lib.Head | None = None,
    shares: bool | None = None,
  ):
    self._decoder = decoder
    self.engine = engine_lib.Engine(
      decoder,
      tokenizer,
      chunk=chunk,
      isolates=isolates,
      head=head,
      shares=shares,
    )

  def stream(self, request: request_lib.Request) -> stream_lib.Stream:
    """Returns a request's tokens as they come; raises as `Engine.check`."""
    return stream_lib.Stream(self.engine, self.engine.submit(request))

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

  def converse(
    self, length: int | None = None
  ) -> conversation_lib.Conversation:
    """Starts a text in turns, of at most `length` tokens (all of a row's)."""
    length = self._decoder.length if length is None else length
    return conversation_lib.Conversation(self.engine, length)

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
