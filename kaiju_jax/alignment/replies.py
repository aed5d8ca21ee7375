"""Samples replies with one decoder, whose weights change from round to round.

Replies are deterministic to the last bit, given the weights and the prompts and
seeds of a call, in their order: a call begins with an empty prefix cache, and
the batch's shape is fixed. Replies to one prompt share its prefill.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.alignment import prompts
from kaiju_jax.data import chat
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.runs import load
from kaiju_jax.runs import play

_ROWS = 16
# Tokens of a call that reads a prompt.
_CHUNK = 128


class SampledReply(NamedTuple):
  """A sampled reply."""

  content: str  # Its text.
  tokens: int  # How many tokens were sampled, its end included.
  finish: str  # 'stop_token', or 'length' if it was cut off.
  seed: int  # The seed of the sampling.

  @property
  def is_usable(self) -> bool:
    """Whether it ended by itself, and is not blank."""
    return self.finish == 'stop_token' and bool(self.content.strip())


def seed_of(*parts: int) -> int:
  """Returns a 32-bit seed that depends on all parts."""
  return int(np.random.SeedSequence(parts).generate_state(1)[0])


class ReplySampler:
  """A decoder whose model can be replaced without a compilation.

  Attributes:
    generator: the generator over the decoder.
  """

  def __init__(
    self,
    format: chat.Format,
    length: int,
    tokens: int,
    temperature: float,
  ):
    """Compiles nothing; `use` makes the decoder.

    Args:
      format: the models' chat format.
      length: tokens of the longest prompt and its reply.
      tokens: the most tokens of a reply.
      temperature: of the sampling.
    """
    self._format = format
    self._length = length
    self._tokens = tokens
    self._sampling = sampling_lib.Sampling(temperature=temperature)
    self._origin = ''
    self.generator: generator_lib.Generator | None = None

  def use(self, loaded: load.Loaded) -> None:
    """Sets the model; only the first one compiles."""
    if loaded.origin == self._origin:
      return
    if self.generator is None:
      tokenizer = self._format.tokenizer
      decoder = play.decoder(loaded, tokenizer, rows=_ROWS, length=self._length)
      self.generator = generator_lib.Generator(
        decoder, tokenizer, chunk=_CHUNK, shares=False
      )
    else:
      self.generator.engine.decoder.replace(loaded.params, loaded.replica)
    self._origin = loaded.origin

  def sample(
    self, asked: Sequence[tuple[prompts.Prompt, int]]
  ) -> list[SampledReply]:
    """Returns a reply to each prompt, sampled with its seed.

    Raises:
      request.BadLogits: the model's logits are no numbers.
    """
    self.generator.engine.decoder.account.tree.clear()
    results = self.generator.generate([self._request(*one) for one in asked])
    found = []
    for (_, seed), result in zip(asked, results, strict=True):
      if result.error is not None:
        raise result.error
      text = chat.strip(result.text)
      found.append(SampledReply(text, len(result.tokens), result.reason, seed))
    return found

  def _request(self, prompt: prompts.Prompt, seed: int) -> request_lib.Request:
    return request_lib.Request(
      self._format.prompt(prompt.messages).astype(np.int32),
      self._tokens,
      dataclasses.replace(self._sampling, seed=seed),
      stop_tokens=self._format.stop_tokens,
    )


def parse(record: Any) -> SampledReply:
  """Returns a reply from its fields, as JSON holds them."""
  return SampledReply(**record)
