"""Remembers the tokens of recent messages; a turn encodes only its new ones."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from kaiju_jax.characters import lru
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib

_LENGTHS = 2**18  # Messages whose lengths are remembered.


class Encoded:
  """A chat format that remembers the tokens of recent messages; thread-safe.

  Every turn encodes the whole conversation, of which only the end is new. One
  object serves all conversations. It remembers messages' lengths for longer
  than their tokens, because of a long history only the end reaches a prompt.
  """

  def __init__(self, format: chat.Format, most: int = 2**22):
    """Begins empty; remembers at most `most` tokens, of 4 bytes each."""
    self.tokenizer: tokenizer_lib.Tokenizer = format.tokenizer
    self.stop_tokens: tuple[int, ...] = format.stop_tokens
    self.head_L: np.ndarray = format.head_L
    self.opening: Callable[..., np.ndarray] = format.opening
    self.advance: Callable[..., str] = format.advance
    self.places: Callable[[str], list[str]] = format.places
    self.thought: chat.Thought | None = format.thought
    self.opens_thought: bool = format.opens_thought
    self.cut_history: Callable[..., np.ndarray] = format.cut_history
    self.cut_thoughts: Callable[..., np.ndarray] = format.cut_thoughts
    self.steps: Mapping[tuple[str, str], chat.Step] = format.steps
    self.structure: np.ndarray = format.structure
    self._format = format
    self._recent = lru.LruCache(most, len)
    self._lengths = lru.LruCache(_LENGTHS)

  def length(self, role: str, text: str) -> int:
    """Returns the number of tokens of `chat.Format.length`."""
    return self._count(
      lambda: max(
        len(self.message(role, text, one)) for one in self.places(role)
      ),
      lru.key(role, text),
    )

  def length_drawn(self, role: str, tokens: Sequence[int]) -> int:
    """Returns the number of tokens of `chat.Format.length_drawn`."""
    return max(
      len(self.encode_drawn(role, tokens, one)) for one in self.places(role)
    )

  def message(self, role: str, text: str, after: str = '') -> np.ndarray:
    """Returns the tokens of `chat.Format.message`, int32 [L], read-only."""
    return self._remember(
      lambda: self._format.message(role, text, after),
      lru.key(role, text, after),
    )

  def encode_drawn(
    self, role: str, tokens: Sequence[int], after: str = ''
  ) -> np.ndarray:
    """Returns `chat.Format.encode_drawn`'s tokens, int32 [L], read-only."""
    tokens_L = np.asarray(tokens, np.int32)
    return self._remember(
      lambda: self._format.encode_drawn(role, tokens_L, after),
      lru.key(role, 'drawn', tokens_L.tobytes(), after),
    )

  def _count(self, count, key: bytes) -> int:
    length = self._lengths.get(key)
    if length is None:
      length = count()
      self._lengths.put(key, length)
    return length

  def _remember(self, encode, key: bytes) -> np.ndarray:
    tokens_L = self._recent.get(key)
    if tokens_L is None:
      tokens_L = encode()
      tokens_L.setflags(write=False)
      self._recent.put(key, tokens_L)
    return tokens_L
