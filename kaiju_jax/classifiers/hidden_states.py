"""Computes a model's hidden states of texts placed as in a server's prompts.

A text is placed as a user's message or as a reply:

    prompt   bos (system character end) user text end assistant    all is judged
    reply    bos (system character end) assistant text    judged: the text

The token-level head reads the hidden states of the judged tokens. A reply's
stop token is not judged (`decoding/engine/sequence.py`).

Our guess: a text follows one of the built-in characters, or none, by its
digest. A head that was trained on texts alone would take the unknown characters
for violations. In a server, texts follow other turns as well.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import hashlib
from typing import NamedTuple

import jax
import numpy as np

from kaiju_jax.characters.cards import builtin
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import packing
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.model import transformer
from kaiju_jax.runs import defaults
from kaiju_jax.runs import load

ROLES = 'prompt', 'reply'
# Tokens that run at a time, and the shortest row that texts are packed into.
_TOKENS, _SHORTEST = 4096, 256


class PlacedText(NamedTuple):
  """A text placed as a prompt or a reply."""

  tokens: np.ndarray  # int32 [L], with the tokens around the text.
  first: int  # The index of the first judged token; all later ones are judged.


class Reader:
  """A model that reads placed texts; it compiles once per length of rows."""

  def __init__(self, loaded: load.Loaded):
    """Loads the tokenizer and prepares the characters' prefixes.

    Raises:
      OSError, ValueError: the tokenizer is missing, or lacks a chat template.
    """
    self.d_model: int = loaded.config.d_model
    self.origin: str = loaded.origin
    self._most = loaded.config.max_length
    tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
    written = defaults.read(loaded, tokenizer).format
    if written is None:
      raise ValueError(f'{loaded.origin}: has no chat template to place texts.')
    self._format = written
    prefixes = [
      prompt.prefix(fields, self._format) for fields in builtin.CHARACTERS
    ]
    # A server publishes the same ones (`app/serve.py`).
    self._heads = [
      prompt.open_prefix(self._format),
      *(one_L for one_L in prefixes if len(one_L) <= self._most // 2),
    ]
    self._variables = load.variables(loaded)
    model = transformer.Transformer(loaded.config)

    @jax.jit
    def hidden(variables, batch):
      return model.apply(
        variables, batch.tokens_BL, batch.visibility(), method='hidden'
      )

    self._hidden = hidden

  def place(self, text: str, role: str) -> PlacedText:
    """Returns a text placed in a role, one of `ROLES`.

    Raises:
      ValueError: the placed text is longer than the model's rows, or holds a
        surrogate.
    """
    digest = hashlib.sha256(text.encode(errors='replace')).digest()
    which = int.from_bytes(digest[:8], 'big') % len(self._heads)
    head_L = self._heads[which]
    after = self._format.advance('system') if which else ''
    if role == 'prompt':
      message_L = self._format.message('user', text, after)
      opening_L = self._format.opening(
        'assistant', self._format.advance('user', after, text)
      )
      said = PlacedText(np.concatenate([head_L, message_L, opening_L]), 0)
    else:
      opening_L = self._format.opening('assistant', after)
      message_L = self._format.message('assistant', text, after)
      # Text encodes to no special token, so the first stop token ends it.
      is_stop_L = np.isin(message_L, self._format.stop_tokens)
      is_stop_L[: len(opening_L)] = False
      message_L = message_L[
        : np.append(np.flatnonzero(is_stop_L), len(is_stop_L))[0]
      ]
      first = len(head_L) + len(opening_L)
      said = PlacedText(np.concatenate([head_L, message_L]), first)
    if len(said.tokens) > self._most:
      raise ValueError(
        f'the text {text[:40]!r}… has {len(said.tokens):,} tokens as a {role}:'
        f' the model takes {self._most:,}; split it, or leave it out.'
      )
    return said

  def states(self, said: Sequence[PlacedText]) -> Iterator[np.ndarray]:
    """Yields float32 [T, D], the hidden states of each text's judged tokens."""
    longest = max((len(one.tokens) for one in said), default=0)
    length = _SHORTEST
    while length < longest:
      length *= 2
    length = min(length, self._most)
    rows = max(1, _TOKENS // length)
    for numbers, batch in _batches(said, rows, length):
      hidden_BLD = np.asarray(self._hidden(self._variables, batch), np.float32)
      # Texts lie in their order, and none is cut.
      hidden_SD = hidden_BLD.reshape(-1, self.d_model)
      hidden_SD = hidden_SD[batch.source_BL.ravel() >= 0]
      begin = 0
      for number in numbers:
        end = begin + len(said[number].tokens)
        yield hidden_SD[begin + said[number].first : end]
        begin = end


def _batches(
  said: Sequence[PlacedText], rows: int, length: int
) -> Iterator[tuple[range, packing.Batch]]:
  """Yields the indices of a batch's texts, and the batch [B, L]."""
  begun, packed, pieces, used = 0, [], [], 0

  def batch(end: int) -> tuple[range, packing.Batch]:
    filled = packed + [packing.row([], length)] * (rows - len(packed))
    return range(begun, end), packing.stack(filled)

  for number, one in enumerate(said):
    if used + len(one.tokens) > length:
      packed.append(packing.row(pieces, length))
      pieces, used = [], 0
      if len(packed) == rows:
        yield batch(number)
        begun, packed = number, []
    pieces.append(packing.Piece(one.tokens, source=number))
    used += len(one.tokens)
  if pieces:
    packed.append(packing.row(pieces, length))
    yield batch(len(said))
