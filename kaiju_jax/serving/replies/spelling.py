r"""Tokens as text and bytes, and where each begins in the text that is shown.

A token may be a part of a character. Then its bytes alone say what it is, and
its text names them, as OpenAI's does: 'bytes:\xe2\x82'. It begins where its
character does.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import stop

_UNREADABLE = '\ufffd'


class Spelled(NamedTuple):
  """A token of a text."""

  text: str  # What it reads as.
  bytes: bytes  # What it adds to the text, in UTF-8.
  begin: int  # The characters of the text before it.
  # Log-probabilities of the alternatives in its place, by token; of those that
  # read alike, the likeliest.
  others: dict[bytes, float]


class Speller:
  """Spells the tokens of one text, in order."""

  def __init__(
    self,
    tokenizer: tokenizer_lib.Tokenizer,
    offset: int = 0,
    begun: Sequence[int] = (),
  ):
    """Begins before the first token.

    Args:
      offset: the number of characters shown before the text.
      begun: the tokens that the text continues.
    """
    self._tokenizer = tokenizer
    self._characters = stop.Characters(tokenizer)
    self._characters.begin(begun)
    self._is_first = not len(begun)
    self._offset = offset

  def spell(self, token: int, others: request_lib.Alternatives = ()) -> Spelled:
    """Returns the next token; `others` are the alternatives in its place."""
    found: dict[bytes, float] = {}
    for other, log_probability in others:
      spelled = self._spell(other)
      found[spelled] = max(found.get(spelled, log_probability), log_probability)
    own, begin = self._spell(token), self._offset
    self._offset += len(self._characters.push(token))
    self._is_first = self._is_first and not own
    return Spelled(read(own), own, begin, found)

  def _spell(self, token: int) -> bytes:
    if self._is_first:
      # Some tokenizers drop the space at the beginning of a text.
      text = self._tokenizer.decode([token])
      if _UNREADABLE not in text:
        return text.encode()
    return self._tokenizer.spell(token)


def read(spelled: bytes) -> str:
  """Returns a token's bytes as text."""
  try:
    return spelled.decode()
  except UnicodeDecodeError:
    return 'bytes:' + ''.join(f'\\x{one:02x}' for one in spelled)
