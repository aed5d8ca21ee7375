"""Remembers replies' tokens, for clients that send the whole history as text.

Unless tokens are bytes, the tokens that a model drew are seldom those that its
text is encoded to. So a history that comes back as text would miss the cache
from the first reply on. A reply's tokens are remembered under its place: the
owner, all earlier messages, and the reply's text.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.characters import lru
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat


class _Reply(NamedTuple):
  """The tokens of a reply, and a hash of its exact text."""

  tokens: np.ndarray
  text: bytes


class Memo:
  """Remembers the tokens of recent replies; thread-safe."""

  def __init__(self, most: int = 2**22):
    """Begins empty; remembers at most `most` tokens, of 4 bytes each."""
    self._recent = lru.LruCache(most, lambda reply: len(reply.tokens) + 32)

  def recall(
    self, owner: str, root: str, messages: Sequence[prompt.TurnLike]
  ) -> tuple[list[prompt.Turn], bytes]:
    """Adds the remembered tokens to the replies among messages.

    Args:
      owner: the asking owner; replies to other owners are not recalled.
      root: names the model, the tokenizer and the character, on which tokens
        depend too.
      messages: the whole conversation, oldest first.

    Returns:
      The messages; the place of the next reply, for `keep`.

    Raises:
      TypeError, ValueError: a text that cannot be encoded; see `chat.strip`.
    """
    place = lru.key(owner, root)
    turns = []
    for one in messages:
      text, tokens = _normalize(one.text), one.tokens
      if one.role == 'assistant' and tokens is None:
        found = self._recent.get(lru.key(place, text))
        tokens = found and found.tokens
      turns.append(prompt.Turn(one.role, one.text, tokens))
      place = lru.key(place, one.role, text)
    return turns, place

  def recall_exactly(self, place: bytes, text: str) -> np.ndarray | None:
    """Returns the tokens of a reply whose text is the same to its ends.

    Args:
      place: the reply's place, from `recall`.
      text: its text.
    """
    found = self._recent.get(lru.key(place, _normalize(text)))
    is_same = found is not None and found.text == lru.key(text)
    return found.tokens if is_same else None

  def keep(self, place: bytes, text: str, tokens: Sequence[int]) -> None:
    """Remembers a reply's tokens.

    Args:
      place: the reply's place, from `recall`.
      text: the text that the client got.
      tokens: the tokens of exactly this text, without later ones.
    """
    tokens_L = np.array(tokens, np.int32)
    tokens_L.setflags(write=False)
    key = lru.key(place, _normalize(text))
    self._recent.put(key, _Reply(tokens_L, lru.key(text)))


def _normalize(text: str) -> str:
  """Returns a text without outer spaces, which clients may change."""
  return chat.strip(text).strip()
