"""Expands the macros of character cards, such as `{{char}}` and `{{roll:d6}}`.

A macro is expanded once, when its text is stored or becomes part of a prefix,
because the cache would not find a text that changed from turn to turn
(`prompt.py`). `expand_stable` expands the texts that all users of a character
share, with the same result for all.

Texts come from strangers, and `{{char}}`, 8 letters, may stand for a name of
200. So the size is counted while macros are replaced, and a text that grows
beyond its bound is refused before it is built.
"""

import datetime
import random as random_lib
import re

USER = 'User'  # Replaces `{{user}}` in texts that all users share.
MOST = 65_536  # The most bytes of an expanded text, and of a stored message.
DICE = 1000  # The most dice that one text may roll.

_CHARACTER = re.compile(r'\{\{\s*char\s*\}\}|<(?:bot|char)>', re.IGNORECASE)
_USER = re.compile(r'\{\{\s*user\s*\}\}|<user>', re.IGNORECASE)
_OTHER = re.compile(r'\{\{([^{}]*)\}\}')
_CHOICE = re.compile(r'(random|pick)\s*(::|:)(.*)', re.IGNORECASE | re.DOTALL)
_ROLL = re.compile(r'roll[\s:]+(?:(\d{0,2})d)?(\d{1,6})', re.IGNORECASE)
_REMARK = re.compile(r'//|(?:comment|hidden_key)\s*:', re.IGNORECASE)
_COMMA = re.compile(r'(?<!\\),')


class TooLarge(ValueError):
  """A text that exceeds its bound before or after macros are expanded."""


def expand(
  text: str,
  char: str,
  user: str,
  random: random_lib.Random | None = None,
  now: datetime.datetime | None = None,
  most: int = MOST,
) -> str:
  """Returns a text with its macros expanded; unknown macros stay.

    {{char}} <char> <BOT>      the character's name
    {{user}} <USER>            the user's name
    {{random:a,b}} {{pick:…}}  one of the choices; `::` separates them as well
    {{roll:d6}} {{roll:2d6}}   the sum of dice
    {{time}} {{date}}          `now`, as 18:05 and 2031-02-28
    {{// …}} {{comment: …}} {{hidden_key: …}}  an empty text

  Args:
    text: the text with macros.
    char: the character's name.
    user: the user's name.
    random: draws choices and dice; None to leave these macros unexpanded.
    now: the time; None to leave these macros unexpanded.
    most: the most bytes of the text as UTF-8, at every step of the expansion.

  Raises:
    TooLarge: the text has more bytes, or rolls more than `DICE` dice.
  """
  count = _Count(len(text.encode(errors='surrogatepass')), most)
  text = _CHARACTER.sub(lambda found: count.replace(found[0], char), text)
  text = _USER.sub(lambda found: count.replace(found[0], user), text)

  def one(found: re.Match[str]) -> str:
    macro = found[1].strip()
    count.roll(macro)
    made = _one(macro, random, now)
    return found[0] if made is None else count.replace(found[0], made)

  return _OTHER.sub(one, text)


def expand_stable(text: str, char: str, most: int = MOST) -> str:
  """Returns a text with its macros expanded, the same at every call.

  The text itself seeds choices and dice, `{{user}}` becomes `USER`, and
  `{{time}}` and `{{date}}` stay unexpanded.

  Raises:
    TooLarge: see `expand`.
  """
  return expand(text, char, USER, random_lib.Random(text), most=most)


class _Count:
  """Counts a text's bytes and dice while its macros are replaced."""

  def __init__(self, size: int, most: int):
    self._most = most
    self._size = 0
    self._dice = 0
    self._grow(size, f'has {size:,} bytes')

  def replace(self, macro: str, made: str) -> str:
    """Counts the bytes of a replacement, and returns it."""
    self._grow(_size(made) - _size(macro), 'has more bytes with its macros')
    return made

  def roll(self, macro: str) -> None:
    """Counts a macro's dice, if it rolls any."""
    found = _ROLL.fullmatch(macro)
    self._dice += int(found[1] or 1) if found else 0
    if self._dice > DICE:
      raise TooLarge(f'the text rolls more than {DICE:,} dice.')

  def _grow(self, size: int, how: str) -> None:
    self._size += size
    if self._size > self._most:
      raise TooLarge(f'the text {how}: at most {self._most:,}.')


def _size(text: str) -> int:
  if text.isascii():
    return len(text)
  return len(text.encode(errors='surrogatepass'))


def _one(
  macro: str,
  random: random_lib.Random | None,
  now: datetime.datetime | None,
) -> str | None:
  """Returns a macro's expansion; None where it stays unexpanded."""
  if _REMARK.match(macro):
    return ''
  if now is not None and macro.lower() == 'time':
    return now.strftime('%H:%M')
  if now is not None and macro.lower() == 'date':
    return now.strftime('%Y-%m-%d')
  if random is None:
    return None
  choice = _CHOICE.fullmatch(macro)
  if choice:
    double = choice[2] == '::' and '::' in choice[3]
    choices = choice[3].split('::') if double else _COMMA.split(choice[3])
    return random.choice(choices).replace('\\,', ',').strip()
  roll = _ROLL.fullmatch(macro)
  if roll and int(roll[2]):
    dice = range(int(roll[1] or 1))
    return str(sum(random.randint(1, int(roll[2])) for _ in dice))
  return None
