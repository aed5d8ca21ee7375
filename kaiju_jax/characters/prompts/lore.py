"""Lore: finds the texts about a character's world that messages call for.

An entry is inserted after a user's message, if the last messages have one of
its keys and its conditions hold, and stays there. The inserted text becomes
part of the history, so that earlier text never changes and the cache finds it
(`prompt.py`). What decides is known when the message is: the messages so far,
and a draw from the conversation's seed, the entry and the message.

A key is text, never a pattern, in upper or lower case unless the entry says
otherwise. A key of one word must be a whole word; one of several words may
begin and end within others, as in SillyTavern. In scripts that write without
spaces a word may stand anywhere.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import hashlib
import itertools
import re
from typing import NamedTuple
from typing import Protocol
import unicodedata

from kaiju_jax.characters import lru
from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import lore_rules
from kaiju_jax.characters.prompts import macros

TOLD = 8  # The most entries that are inserted after one message.
PHRASES = 4096  # The most different keys of a book that are no single word.
_SCANNED = 16_384  # The first characters of a message, which are searched …
_WORK = 2**24  # … fewer where a book has many phrases: characters × phrases.
_REMEMBERED = 16_384  # The number of messages whose keys are remembered.
_EXPANDED = 2**20  # The most bytes of a book's entries, macros expanded.
# A piece of text to normalize at once. Normalization sorts a run of combining
# marks in quadratic time, so that pieces must be short.
_PIECE = re.compile(r'\s*+\S{0,256}+')
_SPACES = re.compile(r'\s+')
# Thai and Lao, Burmese, Khmer, kana, Chinese characters, Hangul.
_UNSPACED = (
  '\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff'
  '\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff'
)
# Vowel signs and accents, which belong to the word.
_MARKS = ''.join(
  chr(code)
  for code in range(0x300, 0x2000)
  if unicodedata.category(chr(code)) in ('Mn', 'Mc')
)
_WORD = re.compile(f'(?:[^\\W{_UNSPACED}][{_MARKS}]*)+')
# Says which form a symbol is drawn in, not which symbol it is.
_VARIANTS = re.compile('[\ufe0e\ufe0f]')
_NEVER = -lore_rules.MOST - 1  # Before all searched messages.
_EDGE = '\0'  # Stands around each word.


class MessageLike(Protocol):
  """A message: its role and its text."""

  role: str
  text: str


class _Key(NamedTuple):
  """A key as it is searched in a text of the same form."""

  text: str
  is_folded: bool
  is_whole: bool


class Book:
  """A character's lore, by the keys of its entries.

  Attributes:
    texts: the entries' texts, macros expanded, by the entry's number.
    rules: their rules by number, by `order`.
    standing: numbers of those that stand at a depth of every conversation, but
      not behind its last message.
    is_full: whether some keys are never found, because there are too many.
  """

  def __init__(
    self,
    entries: Sequence[card_fields.Lore],
    char: str,
    scanned: int = lore_rules.SCANNED,
  ):
    """Reads entries.

    Args:
      entries: a character's; those that the prefix has, and disabled ones, are
        left out.
      char: replaces `{{char}}`.
      scanned: see `lore_rules.read`.
    """
    self.texts: dict[int, str] = {}
    self.rules: dict[int, lore_rules.Rule] = {}
    self.is_full = False
    self._char = char
    # Numbers of keys: words are looked up, each phrase is searched.
    self._words: dict[bool, dict[str, int]] = {}  # By whether case is folded.
    self._phrases: dict[_Key, int] = {}
    self._next = itertools.count()
    self._by_key: dict[int, set[int]] = {}  # Entries' numbers by key.
    # A key is None where no message can have it.
    self._conditions: dict[int, list[tuple[str, list[int | None]]]] = {}
    self._found = lru.LruCache(_REMEMBERED)
    for number, entry in sorted(enumerate(entries), key=lambda x: x[1].order):
      rule = lore_rules.read(entry, scanned)[0]
      if rule.is_in_prefix or not rule.is_enabled or not rule.text.strip():
        continue
      try:
        text = macros.expand_stable(rule.text, char)
        self._add(number, rule)
      except macros.TooLarge:
        continue  # `check` refuses it today; an older version may have it.
      self.texts[number] = text.strip()
      self.rules[number] = rule

    self._ranks = {number: rank for rank, number in enumerate(self.rules)}
    self._constant = [x for x, rule in self.rules.items() if rule.is_constant]
    depths = (rule.scan_depth for rule in self.rules.values())
    self._deepest = max(depths, default=0)
    self.standing: tuple[int, ...] = tuple(
      number for number, rule in self.rules.items() if rule.is_standing
    )

  def find_all(
    self, messages: Sequence[MessageLike], seed: str = ''
  ) -> list[tuple[int, ...]]:
    """Returns the entries that may be inserted after each message, by `order`.

    Args:
      messages: a conversation; entries stand behind users' messages alone.
      seed: names the conversation, for entries that have a probability.

    Returns:
      Entries' numbers per message. An entry is among them whether or not it was
      before, unless its rule says otherwise.
    """
    if not self.rules:
      return [()] * len(messages)
    # The last message that has a key, and one of an entry's keys. The entries
    # are in the order of these messages.
    last: dict[int, int] = {}
    called: dict[int, int] = {}
    found, once, replies = [], set(), 0
    for index, message in enumerate(messages):
      replies += message.role == 'assistant'
      for key in self._look(message.text):
        last[key] = index
        for number in self._by_key.get(key, ()):
          called.pop(number, None)
          called[number] = index
      numbers: tuple[int, ...] = ()
      if message.role == 'user':
        place = _Place(index, replies, seed, message.text)
        last_called = _take_since(called, index - self._deepest)
        told = {
          number
          for number in itertools.chain(self._constant, last_called)
          if number not in once and self._is_told(number, place, last, called)
        }
        numbers = tuple(sorted(told, key=self._ranks.__getitem__))
        once |= {number for number in numbers if self.rules[number].is_once}
      found.append(numbers)
    return found

  def _is_told(
    self,
    number: int,
    place: '_Place',
    last: Mapping[int, int],
    called: Mapping[int, int],
  ) -> bool:
    rule = self.rules[number]
    since = place.index - rule.scan_depth
    if not rule.is_constant and called.get(number, _NEVER) <= since:
      return False
    return (
      place.index + 1 >= rule.messages
      and place.replies >= rule.replies
      and place.replies % rule.every == 0
      and all(_holds(*x, last, since) for x in self._conditions[number])
      and (rule.probability == 100 or place.draw(number) < rule.probability)
    )

  def _look(self, text: str) -> frozenset[int]:
    """Returns the numbers of the keys that a text has."""
    if not (self._words or self._phrases):
      return frozenset()
    digest = lru.key(text)
    found = self._found.get(digest)
    if found is None:
      found = frozenset(self._search(text))
      self._found.put(digest, found)
    return found

  def _search(self, text: str) -> Iterator[int]:
    most = min(_SCANNED, _WORK // (len(self._phrases) or 1))
    forms = _Forms(text[:most])
    for is_folded, words in self._words.items():
      for word in set(_WORD.findall(forms[is_folded, False])):
        if word in words:
          yield words[word]
    for key, number in self._phrases.items():
      if key.text in forms[key.is_folded, key.is_whole]:
        yield number

  def _add(self, number: int, rule: lore_rules.Rule) -> None:
    def number_of(key: str) -> int | None:
      """Returns a key's number; None for one that no message has."""
      text = macros.expand_stable(key, self._char).strip()
      if not text:
        return None
      is_folded = not rule.is_case_sensitive
      is_whole = rule.is_whole_word and len(text.split()) == 1
      form = _Forms(text)[is_folded, is_whole]
      if not form.strip(f' {_EDGE}'):
        return None
      word = form.strip(_EDGE)
      if is_whole and _WORD.fullmatch(word):
        words = self._words.setdefault(is_folded, {})
        return words.setdefault(word, next(self._next))
      phrase = _Key(form, is_folded, is_whole)
      if phrase not in self._phrases and len(self._phrases) == PHRASES:
        self.is_full = True
        return None
      return self._phrases.setdefault(phrase, next(self._next))

    for key in map(number_of, rule.keys):
      if key is not None:
        self._by_key.setdefault(key, set()).add(number)
    self._conditions[number] = [
      (one.logic, list(map(number_of, one.keys))) for one in rule.conditions
    ]


class _Place(NamedTuple):
  """A place in a conversation behind a message of an index and a text."""

  index: int
  replies: int
  seed: str
  text: str

  def draw(self, entry: int) -> float:
    """Returns a number from 0 up to 100, always the same for this place."""
    parts = self.seed, str(entry), str(self.index), self.text
    digest = hashlib.sha256(lru.key(*parts)).digest()
    return 100 * int.from_bytes(digest[:7]) / 2**56


class _Forms(dict):
  """The forms of a text by whether its case is folded and it has edges."""

  def __init__(self, text: str):
    super().__init__()
    self._text = text

  def __missing__(self, form: tuple[bool, bool]) -> str:
    is_folded, has_edges = form
    if has_edges:
      plain = self[is_folded, False]
      made = _WORD.sub(lambda found: f'{_EDGE}{found[0]}{_EDGE}', plain)
    else:
      pieces = _PIECE.findall(_VARIANTS.sub('', self._text))
      made = ''.join(unicodedata.normalize('NFKC', piece) for piece in pieces)
      made = _SPACES.sub(' ', made.replace(_EDGE, ' '))
      made = made.casefold() if is_folded else made
    self[form] = made
    return made


def check(fields: card_fields.Fields) -> None:
  """Refuses lore that is too large after its macros are expanded.

  Raises:
    macros.TooLarge: names the entry; or there are too many keys.
  """
  left, char = _EXPANDED, card_fields.display_name(fields)
  for number, entry in enumerate(_entries(fields)):
    rule = lore_rules.read(entry)[0]
    keys = (*rule.keys, *(key for one in rule.conditions for key in one.keys))
    try:
      text = macros.expand_stable(rule.text, char, min(left, macros.MOST))
      left -= len(text.encode())
      for key in keys:  # Their size is bounded but for their macros.
        left -= max(0, len(macros.expand_stable(key, char)) - len(key))
    except macros.TooLarge as error:
      is_own = number < len(fields.lore)
      name = f'lore[{number}]' if is_own else lore_rules.DEPTH_PROMPT
      raise macros.TooLarge(f'{name}.content: {error}') from None
  if book(fields).is_full:
    raise macros.TooLarge(
      f'lore: more than {PHRASES:,} different keys are no single words.'
    )


def book(fields: card_fields.Fields) -> Book:
  """Returns the book of a character's lore; one object for equal lore."""
  scanned = lore_rules.scan_depth(fields.other.get('book', {}))
  return _book(_entries(fields), card_fields.display_name(fields), scanned)


def _entries(fields: card_fields.Fields) -> tuple[card_fields.Lore, ...]:
  within = lore_rules.depth_prompt(fields)
  return fields.lore if within is None else (*fields.lore, within)


@functools.lru_cache(maxsize=64)
def _book(
  entries: tuple[card_fields.Lore, ...], char: str, scanned: int
) -> Book:
  return Book(entries, char, scanned)


def _take_since(called: dict[int, int], since: int) -> Iterator[int]:
  """Yields the entries that messages behind `since` called for."""
  for number in reversed(called):
    if called[number] <= since:
      return
    yield number


def _holds(
  logic: str, keys: Sequence[int | None], last: Mapping[int, int], since: int
) -> bool:
  """Returns whether the messages behind `since` meet a condition."""
  have = (last.get(key, _NEVER) > since for key in keys)
  match logic:
    case 'and_any':
      return any(have)
    case 'and_all':
      return all(have)
    case 'not_any':
      return not any(have)
    case 'not_all':
      return not all(have)
  raise ValueError(f'logic={logic!r}: no such logic.')
