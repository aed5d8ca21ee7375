"""Finds which two characters a regular expression can read one after another.

If no match of an expression, and nothing that it looks ahead at, can hold 'x'
followed by 'y', then its matches before and behind that place do not depend on
each other. `Expression.can_read` answers for every pair. It may say yes where
the truth is no, never the reverse.

The answer follows from the positions of the expression's single characters and
classes (Glushkov's automaton): which can begin, which can end, and which can
follow which. The syntax is that of Oniguruma, which `tokenizers` uses.
"""

import functools
import re
from typing import NamedTuple

import tokenizers
from tokenizers import pre_tokenizers

_CHARACTERS, _ATOMS = 8192, 512  # Most of an expression; work is quadratic.
_DEPTH = 50  # Levels of groups and of classes.
_INTERVAL = re.compile(r'\{(\d*)(,?)(\d*)\}')
_CLASSES = 'sSdDwWhHNO'  # Escapes that match one of several characters.
_CHARACTER = re.compile(
  r'\\(?:[pP]\{\^?[\w ]+\}|x\{[0-9a-fA-F]+\}|x[0-9a-fA-F]{1,2}'
  rf'|u[0-9a-fA-F]{{4}}|[tnrfvae{_CLASSES}]|[^\w\s]|\s)'
)
_GROUP = re.compile(
  r'\(\?(?:(?P<comment>#)|(?P<behind><[=!])|(?P<ahead>[=!])|[:>]|P?<\w+>'
  r'|(?P<flags>[im]*(?:-[im]+)?)(?P<end>[:)]))'
)
_INLINE = re.compile(r'\(\?([im]*(?:-[im]+)?)\)')
_WORD, _ANY = r'\w', '.|\n'


class Unreadable(ValueError):
  """An expression of a form that is not analyzed."""


class _Part(NamedTuple):
  """A part of an expression."""

  is_nullable: bool  # Whether it can match nothing.
  # The atoms that its matches can begin and end with.
  first: frozenset[int]
  last: frozenset[int]


_NOTHING = _Part(True, frozenset(), frozenset())


class Expression:
  """A regular expression, analyzed."""

  def __init__(self, pattern: str):
    """Analyzes it.

    Raises:
      Unreadable: it is invalid or too large, or has another form, such as a
        reference to an earlier group.
    """
    self._pattern = pattern
    self._at = 0
    self._atoms: list[str] = []
    self._follow: set[tuple[int, int]] = set()
    if len(pattern) > _CHARACTERS:
      raise Unreadable(f'has {len(pattern):,} characters')
    self._alternatives('', 0)
    if self._at < len(pattern):
      raise Unreadable('has an unmatched )')
    self._splits = [_split(one) for one in self._atoms]
    self.can_read = functools.lru_cache(2**16)(self._can_read)
    self.can_match = functools.lru_cache(2**16)(self._can_match)

  def _can_read(self, left: str, right: str) -> bool:
    """Returns whether it can read `left` and then `right`, one character each.

    Characters that others stand for without regard to case, as 'ss' does for
    'ß', count as read.
    """
    if len(left.casefold()) > 1 or len(right.casefold()) > 1:
      return True
    lefts, rights = self._matching(left), self._matching(right)
    return any((a, b) in self._follow for a in lefts for b in rights)

  def _can_match(self, character: str) -> bool:
    """Returns whether a match can hold a character."""
    return len(character.casefold()) > 1 or bool(self._matching(character))

  def _matching(self, character: str) -> list[int]:
    return [
      index
      for index, split in enumerate(self._splits)
      if not split.pre_tokenize_str(character)
    ]

  def _alternatives(self, flags: str, depth: int) -> _Part:
    """Parses up to a ) or the end."""
    if depth > _DEPTH:
      raise Unreadable(f'is nested deeper than {_DEPTH} levels')
    several, found = [], _NOTHING
    while self._at < len(self._pattern) and not self._is('\\)'):
      if self._take('\\|'):
        several.append(found)
        found = _NOTHING
        continue
      inline = _INLINE.match(self._pattern, self._at)
      if inline:  # Holds to the end of the group, alternatives included.
        self._at = inline.end()
        found = self._join(
          found, self._alternatives(_add_flags(flags, inline[1]), depth + 1)
        )
        continue
      found = self._join(found, self._quantified(flags, depth))
    several.append(found)
    return _Part(
      any(one.is_nullable for one in several),
      frozenset().union(*(one.first for one in several)),
      frozenset().union(*(one.last for one in several)),
    )

  def _quantified(self, flags: str, depth: int) -> _Part:
    part = self._single(flags, depth)
    while True:
      interval = _INTERVAL.match(self._pattern, self._at)
      if interval and (interval[1] or interval[3]):
        self._at = interval.end()
        least, most = interval[1], interval[3] if interval[2] else interval[1]
        repeats = most not in ('0', '1')
        is_nullable = not int(least or 0)
      elif sign := self._take('[*+?]'):
        repeats, is_nullable = sign != '?', sign != '+'
      else:
        return part
      if repeats:
        self._connect(part.last, part.first)
      part = part._replace(is_nullable=part.is_nullable or is_nullable)

  def _single(self, flags: str, depth: int) -> _Part:
    """Parses a character, a class, an anchor or a group."""
    if self._is('\\('):
      return self._group(flags, depth)
    if self._is('\\['):
      return self._atom(self._take_class(flags))
    if self._take(r'\\[bB]'):
      return self._ahead(self._atom(_WORD))
    if self._take(r'\\[zZ]|\$'):
      return self._ahead(self._atom(_ANY))
    if self._take(r'\\[AG]|\^'):
      return _NOTHING
    found = _CHARACTER.match(self._pattern, self._at)
    if found is None and self._is(r'[\\*+?]'):
      raise Unreadable(f'has {self._pattern[self._at : self._at + 2]!r}')
    text = found[0] if found else self._pattern[self._at]
    self._at += len(text)
    if not found and text != '.':
      text = re.escape(text)
    _refuse_case(text, flags)
    return self._atom(f'(?{flags}:{text})' if flags else text)

  def _group(self, flags: str, depth: int) -> _Part:
    begun = self._at
    found = _GROUP.match(self._pattern, begun)
    if found is None:
      if self._is(r'\(\?'):
        raise Unreadable(f'has {self._pattern[begun : begun + 4]!r}')
      self._at += 1
    elif found['comment']:
      raise Unreadable('has a comment')
    else:
      self._at = found.end()
      flags = _add_flags(flags, found['flags'] or '')
    part = self._alternatives(flags, depth + 1)
    if not self._take('\\)'):
      raise Unreadable('has an unmatched (')
    if found and found['behind']:
      # It looks at text that is there: pieces overlap by more than this.
      if self._at - begun > 40 or set(self._pattern[begun : self._at]) & {
        *'{*+'
      }:
        raise Unreadable('looks far behind')
      return _NOTHING
    return self._ahead(part) if found and found['ahead'] else part

  def _take_class(self, flags: str) -> str:
    begun, depth = self._at, 0
    while True:
      if self._at >= len(self._pattern) or depth > _DEPTH:
        raise Unreadable('has an unmatched [')
      if self._take(r'\[\^?\]'):
        raise Unreadable('has a class that begins with ]')
      if not (
        self._take(r'\[:\^?\w+:\]')
        or (_CHARACTER.match(self._pattern, self._at) and self._take_escape())
      ):
        if self._is(r'\\'):
          raise Unreadable(f'has {self._pattern[self._at : self._at + 2]!r}')
        depth += self._is(r'\[') - self._is(r'\]')
        self._at += 1
      if not depth:
        break
    text = self._pattern[begun : self._at]
    _refuse_case(text, flags)
    return f'(?{flags}:{text})' if flags else text

  def _take_escape(self) -> bool:
    self._at = _CHARACTER.match(self._pattern, self._at).end()
    return True

  def _atom(self, text: str) -> _Part:
    if len(self._atoms) == _ATOMS:
      raise Unreadable(f'has more than {_ATOMS} characters and classes')
    self._atoms.append(text)
    found = frozenset([len(self._atoms) - 1])
    return _Part(False, found, found)

  def _ahead(self, part: _Part) -> _Part:
    """Returns a part that is read and not matched: what follows reads again."""
    return _Part(True, part.first, frozenset())

  def _join(self, left: _Part, right: _Part) -> _Part:
    self._connect(left.last, right.first)
    return _Part(
      left.is_nullable and right.is_nullable,
      left.first | (right.first if left.is_nullable else frozenset()),
      right.last | (left.last if right.is_nullable else frozenset()),
    )

  def _connect(self, lasts: frozenset[int], firsts: frozenset[int]) -> None:
    self._follow.update((a, b) for a in lasts for b in firsts)

  def _is(self, syntax: str) -> bool:
    return bool(re.compile(syntax).match(self._pattern, self._at))

  def _take(self, syntax: str) -> str:
    found = re.compile(syntax).match(self._pattern, self._at)
    if not found:
      return ''
    self._at = found.end()
    return found[0]


def _add_flags(flags: str, more: str) -> str:
  on, _, off = more.partition('-')
  return ''.join(sorted({*flags, *on} - {*off}))


def _refuse_case(text: str, flags: str) -> None:
  """Refuses what may match several characters where case does not matter."""
  is_plain = text.isascii() and not re.search(r'\\[^\W_]', text)
  if 'i' in flags and not is_plain:
    raise Unreadable('has classes without regard to case')


def _split(atom: str) -> pre_tokenizers.PreTokenizer:
  """Returns what removes the characters that an atom matches."""
  try:
    return pre_tokenizers.Split(tokenizers.Regex(atom), 'removed')
  except Exception:  # The library raises nothing narrower.
    raise Unreadable(f'has {atom!r:.40}') from None
