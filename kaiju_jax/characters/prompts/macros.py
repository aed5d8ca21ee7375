"""Expands the macros of character cards, such as `{{char}}` and `{{roll:d6}}`.

A macro is expanded once, when its text is stored or becomes part of a prefix,
because the cache would not find a text that changed from turn to turn
(`prompt.py`). `expand_stable` expands the texts that all users of a character
share, with the same result for all.

Macros may stand within macros. The commas of a choice are those of the text
itself, not of what a macro within it becomes, and what was expanded is not
expanded again.

Texts come from strangers, and `{{char}}`, 8 letters, may stand for a name of
200. So the size is counted while macros are replaced, and a text that grows
beyond its bound is refused before it is built.
"""

import array
import bisect
import datetime
import itertools
import random as random_lib
import re
from typing import NamedTuple

USER = 'User'  # Replaces `{{user}}` in texts that all users share.
MOST = 65_536  # The most bytes of an expanded text, and of a stored message.
DICE = 1000  # The most dice that one text may roll.
DEPTH = 32  # The most macros within each other.

# Another alphabet's letter is none of a macro's, whatever its case.
_FLAGS = re.IGNORECASE | re.ASCII
_WEDNESDAY = datetime.datetime(2031, 1, 1)  # The day of the longest name.
_LONGEST = random_lib.Random()  # Stands for whatever draw is the longest.
# The last two of several braces open a macro.
_TOKEN = re.compile(
  r'\{\{(?!\{)|\}\}|<(?:bot|char|user|group|charifnotgroup)>', _FLAGS
)
# As in the page's `named`.
_NAMES = re.compile(
  r'\{\{[ \t\n]*+(char|user)[ \t\n]*+\}\}|<(bot|char|user)>',
  _FLAGS,
)
_NAME = re.compile(r'\s*([a-z_]+)(\s*::?|\s+|\s*$)', _FLAGS)
_REMARK = re.compile(r'\s*(?://|(?:comment|hidden_key)(?:[\s:]|\}\}))', _FLAGS)
# A remark may also be what stands between two macros.
_LONG_REMARK = re.compile(r'\{\{(//|comment)\}\}', _FLAGS)
_REMARK_END = re.compile(r'\{\{/(//|comment)\}\}', _FLAGS)
# Possessive: each run of line feeds is read once.
_TRIM = re.compile(r'(?<!\n)\n*+\{\{\s*+trim\s*+\}\}\n*+', _FLAGS)
_CHARACTER = 'char', 'bot', 'group', 'charifnotgroup'
_CLOCK = {
  'time': '%H:%M',
  'isotime': '%H:%M',
  'date': '%Y-%m-%d',
  'isodate': '%Y-%m-%d',
  'weekday': '%A',
}
_SPACES = {'newline': '\n', 'space': ' ', 'noop': ''}
_ROLL = re.compile(r'(?:(\d{0,2})d)?(\d{1,6})([+-]\d{1,6})?', _FLAGS)
_COMMA, _COLONS = re.compile(r'(?<!\\),'), re.compile('::')


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

    {{char}} <char> <BOT>      the character's name; {{group}} likewise
    {{user}} <USER>            the user's name
    {{random:a,b}} {{pick:…}}  one of the choices; `::` separates them as well
    {{roll:d6}} {{roll:2d6+1}} the sum of dice
    {{time}} {{date}}          `now`, as 18:05 and 2031-02-28; {{weekday}}
    {{reverse:abc}}            the characters from the last to the first
    {{newline}} {{space}} {{noop}} {{trim}}  white space, or none
    {{// …}} {{comment: …}} {{hidden_key: …}}  an empty text

  Args:
    text: the text with macros.
    char: the character's name.
    user: the user's name.
    random: draws choices and dice; None to leave these macros unexpanded.
    now: the time; None to leave these macros unexpanded.
    most: the most bytes of the text as UTF-8, at every step of the expansion.

  Raises:
    TooLarge: the text has more bytes, rolls more than `DICE` dice, or has more
      than `DEPTH` macros within each other.
  """
  size = _size(text)
  if size > most:
    raise TooLarge(f'the text has {size:,} bytes: at most {most:,}.')
  if '{{' not in text and '<' not in text:
    return text
  return _Expansion(text, char, user, random, now, most).whole()


def expand_stable(text: str, char: str, most: int = MOST) -> str:
  """Returns a text with its macros expanded, the same at every call.

  The text itself seeds choices and dice, `{{user}}` becomes `USER`, and
  `{{time}}` and `{{date}}` stay unexpanded.

  Raises:
    TooLarge: see `expand`.
  """
  return expand(text, char, USER, random_lib.Random(text), most=most)


def expand_names(text: str, char: str, most: int = MOST) -> str:
  """Returns a text with names for `{{char}}` and `{{user}}`, as the page does.

  Raises:
    TooLarge: the text has more than `most` bytes.
  """
  names = {'user': USER} | dict.fromkeys(('char', 'bot'), char)
  count = _size(text)

  def replace(found: re.Match[str]) -> str:
    nonlocal count
    name = names[(found[1] or found[2]).lower()]
    count += _size(name) - _size(found[0])
    if count > most:
      raise TooLarge(f'the text has more bytes with names: at most {most:,}.')
    return name

  return _NAMES.sub(replace, text)


def check_all_draws(text: str, char: str) -> None:
  """Refuses a text that is too large by any draw, or on any day.

  Raises:
    TooLarge: see `expand`.
  """
  expand(text, char, USER, _LONGEST, _WEDNESDAY)


class _Choice(NamedTuple):
  """A part of a text, in characters, and its first token's number."""

  begin: int
  end: int
  token: int


class _Expansion:
  """One expansion of one text."""

  def __init__(self, text, char, user, random, now, most):
    self._text = text = _TRIM.sub('', text)
    self._fixed = dict.fromkeys(_CHARACTER, char) | {'user': user} | _SPACES
    if now is not None:
      self._fixed |= {word: f'{now:{form}}' for word, form in _CLOCK.items()}
    self._random = random
    self._most = most
    self._size = self._dice = self._depth = 0
    # Where each token begins and ends; arrays, because there may be many.
    self._begins, self._ends = array.array('i'), array.array('i')
    # The number of an opening token's closing one; -1 for none.
    self._closing = array.array('i')
    opened = array.array('i')
    for found in _TOKEN.finditer(text):
      if found[0] == '{{':
        opened.append(len(self._begins))
      elif found[0] == '}}' and opened:
        self._closing[opened.pop()] = len(self._begins)
      self._begins.append(found.start())
      self._ends.append(found.end())
      self._closing.append(-1)
    self._last = text.rfind('}}')
    self._remark_ends: dict[str, list[int]] = {'//': [], 'comment': []}
    for found in _REMARK_END.finditer(text):
      self._remark_ends[found[1].lower()].append(found.end())

  def whole(self) -> str:
    return self._expand(_Choice(0, len(self._text), 0))

  def _expand(self, part: _Choice) -> str:
    begin, end, token = part
    made = []
    while token < len(self._begins) and self._begins[token] < end:
      made.append(self._count(self._text[begin : self._begins[token]]))
      last, text = self._replace(token)
      made.append(text)
      begin, token = self._ends[last], last + 1
    made.append(self._count(self._text[begin:end]))
    return ''.join(made)

  def _replace(self, token: int) -> tuple[int, str]:
    """Returns the last token of what a token begins, and its text."""
    word = self._text[self._begins[token] : self._ends[token]].lower()
    if word == '}}':
      return token, self._count(word)
    if word != '{{':
      return token, self._count(self._fixed[word[1:-1]])
    last = self._end_of_remark(token)
    if last is not None:
      return last, ''
    last = self._closing[token]
    text = None if last < 0 else self._macro(token, last)
    # The rest of an unknown macro is expanded like any text.
    return (token, self._count(word)) if text is None else (last, text)

  def _end_of_remark(self, token: int) -> int | None:
    """Returns the last token of a remark; None where none begins.

    A remark shows nothing, even where the braces within it do not match.
    """
    if not _REMARK.match(self._text, self._ends[token]):
      return None
    last = self._closing[token]
    if last < 0:
      if self._ends[token] > self._last:
        return None
      at = self._text.index('}}', self._ends[token])
      return bisect.bisect_left(self._begins, at)
    long = _LONG_REMARK.match(self._text, self._begins[token])
    ends = self._remark_ends[long[1].lower()] if long else ()
    at = bisect.bisect(ends, self._ends[last])
    if at == len(ends):
      return last
    return bisect.bisect_left(self._begins, ends[at]) - 1

  def _macro(self, token: int, last: int) -> str | None:
    """Returns what a macro becomes; None for one that stays as it is."""
    first, end = self._ends[token], self._begins[last]
    name = _NAME.match(self._text, first, end)
    if name is None:
      return None
    word, is_alone = name[1].lower(), not name[2].strip() and name.end() == end
    if is_alone:
      text = self._fixed.get(word)
      return None if text is None else self._count(text)
    within = _Choice(name.end(), end, token + 1)
    if word == 'reverse':
      make = self._reverse
    elif word in ('random', 'pick') and within.begin < end:
      make = self._choose
    elif word == 'roll':
      make = self._roll
    else:
      return None
    if self._random is None and word != 'reverse':
      return None
    self._depth += 1
    if self._depth > DEPTH:
      raise TooLarge(f'the text has more than {DEPTH} macros within another.')
    text = make(within)
    self._depth -= 1
    return text

  def _reverse(self, within: _Choice) -> str:
    return self._expand(within)[::-1].strip()

  def _choose(self, within: _Choice) -> str:
    choices = self._split(within)
    if self._random is not _LONGEST:
      return self._expand_choice(self._random.choice(choices))
    before, made = self._size, []
    for choice in choices:
      self._size = before
      made.append((self._expand_choice(choice), self._size))
    text, self._size = max(made, key=lambda one: one[1])
    return text

  def _expand_choice(self, choice: _Choice) -> str:
    return self._expand(choice).replace('\\,', ',').strip()

  def _split(self, within: _Choice) -> list[_Choice]:
    # The separators of a macro that stands within belong to that.
    inner, token = [], within.token
    while token < len(self._begins) and self._begins[token] < within.end:
      last = max(token, self._closing[token])
      inner.append((self._begins[token], self._ends[last]))
      token = last + 1
    for separator in _COLONS, _COMMA:
      cuts, at = [], within.begin
      for begin, end in [*inner, (within.end, within.end)]:
        cuts += [x.span() for x in separator.finditer(self._text, at, begin)]
        at = end
      if cuts:
        break
    edges = [within.begin, *itertools.chain.from_iterable(cuts), within.end]
    return [
      _Choice(begin, end, bisect.bisect_left(self._begins, begin))
      for begin, end in zip(edges[::2], edges[1::2], strict=True)
    ]

  def _roll(self, within: _Choice) -> str:
    before = self._size
    text = self._expand(within)
    found = _ROLL.fullmatch(text.strip())
    if found is None or not int(found[2]):
      self._size = before
      return self._count('{{roll:' + text + '}}')
    dice = int(found[1] or 1)
    self._dice += dice
    if self._dice > DICE:
      raise TooLarge(f'the text rolls more than {DICE:,} dice.')
    self._size = before
    sides, more = int(found[2]), int(found[3] or 0)
    if self._random is _LONGEST:
      rolled = max(dice, dice * sides, key=lambda n: len(str(n + more)))
    else:
      rolled = sum(self._random.randint(1, sides) for _ in range(dice))
    return self._count(str(rolled + more))

  def _count(self, text: str) -> str:
    """Counts the bytes of a part of the result, and returns it."""
    self._size += _size(text)
    if self._size > self._most:
      raise TooLarge(
        f'the text has more bytes with its macros: at most {self._most:,}.'
      )
    return text


def _size(text: str) -> int:
  if text.isascii():
    return len(text)
  return len(text.encode(errors='surrogatepass'))
