"""Turns drawn tokens into text to show, and finds where a sequence stops.

Shown text is never taken back. So text is held back while it may still change
or be cut: bytes that are not a whole character yet, and an end that may become
a stop string.

A sequence stops at one of its stop tokens, or where its text first completes a
stop string; if the same character completes several, the longest counts.
Neither is shown. A stop string lies in the drawn tokens' text alone, not in the
prompt's. How text is divided into tokens does not matter, except that
the token that completes a stop string is the last.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
import numbers

from kaiju_jax.data import tokenizer as tokenizer_lib

_UNREADABLE = '\ufffd'
_UNFINISHED = 3  # A character that is not whole has at most 3 bytes.
_UNDECIDED = 32  # After so many tokens, undecided text begins no character.
_KEPT = 8


class Characters:
  """Text of tokens, given out as soon as each character is whole.

  The joined pieces equal the tokenizer's `decode` of all tokens, unless more
  than 32 tokens in a row decode to no readable character.
  """

  def __init__(self, tokenizer: tokenizer_lib.Tokenizer):
    self._tokenizer = tokenizer
    # Tokens decode differently at the start of a text than within it ('▁a' is
    # 'a' there). So the tokens of the last piece are kept in front of new ones.
    self._tokens: list[int] = []
    self._last = 0  # How many there were when the last piece was whole.
    self._given = 0  # How many characters of their text were given out.

  def begin(self, tokens: Sequence[int]) -> None:
    """Takes in the tokens before the text; the last ones suffice."""
    for token in tokens[-_UNDECIDED:]:
      self.push(token)

  def push(self, token: int) -> str:
    """Returns the characters that `token` completes; U+FFFD if unknown."""
    self._tokens.append(int(token))
    text = self._decode(self._tokens)
    held = len(text) - len(text.rstrip(_UNREADABLE))
    if held and len(self._tokens) - self._last <= _UNFINISHED:
      # Some tokenizers also read the whole characters before it as broken.
      return ''
    piece = self._give(text, len(text) - min(held, _UNFINISHED))
    if piece and not held:
      self._drop(self._last)
    elif len(self._tokens) > _UNDECIDED:
      unread = len(text) - self._given
      self._drop(len(self._tokens) - _KEPT)
      self._given = max(self._given - unread, 0)
    return piece

  def finish(self) -> str:
    """Returns what was held back, after the last token."""
    text = self._decode(self._tokens)
    return self._give(text, len(text))

  def _give(self, text: str, end: int) -> str:
    piece = text[self._given : end]
    self._given = max(self._given, end)
    return piece

  def _drop(self, count: int) -> None:
    """Forgets the first `count` tokens; text of the rest counts as given."""
    self._tokens = self._tokens[count:]
    self._last = len(self._tokens)
    self._given = len(self._decode(self._tokens))

  def _decode(self, tokens: list[int]) -> str:
    known = self._tokenizer.vocab_size
    if all(0 <= token < known for token in tokens):
      return self._tokenizer.decode(tokens)
    end = next(i for i, token in enumerate(tokens) if not 0 <= token < known)
    return (
      self._tokenizer.decode(tokens[:end])
      + _UNREADABLE
      + (self._decode(tokens[end + 1 :]) if tokens[end + 1 :] else '')
    )


class Strings:
  """Passes text on until a stop string is complete; refuses an empty one."""

  def __init__(self, strings: Sequence[str]):
    check_strings(strings)
    self._strings = tuple(strings)
    self._held = ''
    self.found: str | None = None

  @property
  def held(self) -> int:
    """The number of characters that may begin a stop string."""
    return len(self._held)

  def push(self, text: str) -> str:
    """Returns what can be shown; sets `found` once a stop string is whole."""
    text = self._held + text
    ends = [
      (start + len(string), start, string)
      for string in self._strings
      if (start := text.find(string)) >= 0
    ]
    if ends:
      _, start, self.found = min(ends)
      self._held = ''
      return text[:start]
    shown = len(text) - max(
      (_overlap(text, string) for string in self._strings), default=0
    )
    self._held = text[shown:]
    return text[:shown]

  def finish(self) -> str:
    """Returns what was held back, after the last text."""
    text, self._held = self._held, ''
    return text


class Text:
  """The shown text of one sequence, and why it ended.

  `reason` is None while it goes on, then 'stop_token' or 'stop_string'. Stop
  strings need a tokenizer; without one there is no text. Bad arguments raise
  TypeError or ValueError.
  """

  def __init__(
    self,
    tokenizer: tokenizer_lib.Tokenizer | None,
    tokens: Collection[int] = (),
    strings: Sequence[str] = (),
  ):
    check_tokens(tokens)
    if strings and tokenizer is None:
      raise ValueError(
        f'strings={strings!r}: stop strings need a tokenizer, and none is'
        ' given.'
      )
    self._tokens = frozenset(map(int, tokens))
    self._strings = Strings(strings)
    self._characters = None if tokenizer is None else Characters(tokenizer)
    self.reason: str | None = None

  @property
  def held(self) -> int:
    """The number of whole characters that are held back."""
    return self._strings.held

  def push(self, token: int) -> str:
    """Returns the text to show, perhaps none; ValueError once it has ended."""
    if self.reason is not None:
      raise ValueError(
        f'token={token}: the sequence ended before, by {self.reason}.'
      )
    if token in self._tokens:
      shown = self.finish()
      if self.reason is None:
        self.reason = 'stop_token'
      return shown
    if self._characters is None:
      return ''
    return self._show(self._characters.push(token))

  def begin(self, tokens: Sequence[int]) -> None:
    """Takes in the tokens before the text, behind which it reads."""
    if self._characters is not None:
      self._characters.begin(tokens)

  def skip(self, tokens: Iterable[int]) -> None:
    """Takes in drawn tokens whose text was shown elsewhere.

    Raises ValueError: the text ends with one of them, or before.
    """
    for token in tokens:
      self.push(int(token))
    if self.reason is not None:
      raise ValueError(
        f'drawn: its text ends by {self.reason}, so that nothing follows.'
      )

  def finish(self) -> str:
    """Returns what was held back, if the sequence ends without a stop."""
    if self._characters is None or self.reason is not None:
      return ''
    # Bytes that became no character end the text as U+FFFD, which can also be
    # part of a stop string.
    shown = self._show(self._characters.finish())
    return shown + self._strings.finish()

  def _show(self, text: str) -> str:
    shown = self._strings.push(text)
    if self._strings.found is not None:
      self.reason = 'stop_string'
    return shown


def settle(text: str) -> str:
  """Returns a text without the end that its next token may complete.

  It is what `Characters` gives out of the text's tokens before `finish`.
  """
  held = len(text) - len(text.rstrip(_UNREADABLE))
  return text[: len(text) - min(held, _UNFINISHED)]


def check_tokens(tokens: Collection[int], name: str = 'tokens') -> None:
  """Refuses stop tokens that are no integers ≥ 0: TypeError, ValueError."""
  if not isinstance(tokens, Iterable) or isinstance(tokens, str):
    raise TypeError(f'{name}={tokens!r}: expected several integers.')
  for token in tokens:
    if isinstance(token, bool) or not isinstance(token, numbers.Integral):
      raise TypeError(f'{name} holds {token!r}: expected integers.')
    if token < 0:
      raise ValueError(f'{name} holds {token}: expected 0 or more.')


def check_strings(strings: Sequence[str]) -> None:
  """Refuses stop strings that are empty or none: TypeError, ValueError."""
  if isinstance(strings, str):
    raise TypeError(
      f'strings={strings!r}: expected several, as ({strings!r},).'
    )
  for string in strings:
    if not isinstance(string, str):
      raise TypeError(f'strings holds {string!r}: expected str.')
    if not string:
      raise ValueError("strings holds '': every text would stop at once.")


def _overlap(text: str, string: str) -> int:
  """Returns how many last characters of `text` begin `string`, not whole."""
  for size in range(min(len(text), len(string) - 1), 0, -1):
    if text.endswith(string[:size]):
      return size
  return 0
