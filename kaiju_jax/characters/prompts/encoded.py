"""Remembers the tokens of recent messages; a turn encodes only its new ones."""

from collections.abc import Callable
from collections.abc import Sequence
import functools

import numpy as np

from kaiju_jax.characters import lru
from kaiju_jax.data import chat

_LENGTHS = 2**18  # Messages whose lengths are remembered.


class Encoded(chat.Format):
  """A chat format that remembers the tokens of recent messages; thread-safe.

  Every turn encodes the whole conversation, of which only the end is new. One
  object serves all conversations. It remembers messages' lengths for longer
  than their tokens, because of a long history only the end reaches a prompt.
  """

  def __init__(self, format: chat.Format, most: int = 2**22):
    """Begins empty; remembers at most `most` tokens, of 4 bytes each."""
    vars(self).update(vars(format))  # Its fields are frozen.
    vars(self).update(
      _recent=lru.LruCache(most, len), _lengths=lru.LruCache(_LENGTHS)
    )

  def length(self, role: str, text: str) -> int:
    """Returns the number of tokens of `chat.Format.length`."""
    key = lru.key(role, text)
    length = self._lengths.get(key)
    if length is None:
      length = super().length(role, text)
      self._lengths.put(key, length)
    return length

  def message(self, role: str, text: str, after: str = '') -> np.ndarray:
    """Returns the tokens of `chat.Format.message`, int32 [L], read-only."""
    return self._remember(
      functools.partial(super().message, role, text, after),
      lru.key(role, text, after),
    )

  def encode_drawn(
    self, role: str, tokens: Sequence[int], after: str = ''
  ) -> np.ndarray:
    """Returns `chat.Format.encode_drawn`'s tokens, int32 [L], read-only."""
    tokens_L = np.asarray(tokens, np.int32)
    return self._remember(
      functools.partial(super().encode_drawn, role, tokens_L, after),
      lru.key(role, 'drawn', tokens_L.tobytes(), after),
    )

  def _remember(
    self, encode: Callable[[], np.ndarray], key: bytes
  ) -> np.ndarray:
    tokens_L = self._recent.get(key)
    if tokens_L is None:
      tokens_L = encode()
      # A caller that changed it would change later prompts.
      tokens_L.setflags(write=False)
      self._recent.put(key, tokens_L)
    return tokens_L
