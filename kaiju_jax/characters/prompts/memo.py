"""The tokens of replies, for clients that send the whole history as text.

A model's tokens are seldom those that its text would be encoded to, except with
bytes. So a history that comes back as text would miss the cache from the first
reply on. What was drawn is remembered by its place: who asked, all that was
said before, and the text.
"""

from collections.abc import Sequence

import numpy as np

from kaiju_jax.characters import recent
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat


class Memo:
  """Remembers the tokens of recent replies; thread-safe."""

  def __init__(self, most: int = 2**22):
    """Begins empty.

    Args:
      most: how many tokens are remembered, 4 bytes each.
    """
    self._recent = recent.Recent(most, lambda tokens_L: len(tokens_L) + 32)

  def recall(
    self, owner: str, root: str, messages: Sequence[prompt.Message]
  ) -> tuple[list[prompt.Turn], bytes]:
    """Returns messages with the tokens of known replies, and their place.

    Args:
      owner: who asks; others' replies are not recalled.
      root: what the tokens depend on besides: model, tokenizer and character.
      messages: the whole conversation, oldest first.

    Returns:
      The messages; and the place of what comes next, for `keep`.

    Raises:
      TypeError, ValueError: a text that cannot be encoded; see `chat.strip`.
    """
    place = recent.key(owner, root)
    turns = []
    for one in messages:
      text, tokens = _normalize(one.text), one.tokens
      if one.role == 'assistant' and tokens is None:
        tokens = self._recent.get(recent.key(place, text))
      turns.append(prompt.Turn(one.role, one.text, tokens))
      place = recent.key(place, one.role, text)
    return turns, place

  def keep(self, place: bytes, text: str, tokens: Sequence[int]) -> None:
    """Remembers a reply.

    Args:
      place: where it stands, by `recall`.
      text: what the client was given.
      tokens: those that make this text, and no others that were drawn behind.
    """
    tokens_L = np.array(tokens, np.int32)
    tokens_L.setflags(write=False)
    key = recent.key(place, _normalize(text))
    self._recent.put(key, tokens_L)


def _normalize(text: str) -> str:
  """Returns a text without what clients change: spaces around it."""
  return chat.strip(text).strip()
