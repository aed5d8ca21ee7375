"""Lore: finds the texts about a character's world that messages call for.

An entry is inserted after the first message that contains one of its keys, and
stays there. The inserted text becomes part of the history, so that earlier text
never changes and the cache finds it (`prompt.py`).

A key is one or more whole words, in upper or lower case, never a pattern. In
scripts that write without spaces each character counts as a word.
"""

from collections.abc import Sequence
import functools
import re
import unicodedata

from kaiju_jax.characters import recent
from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import macros

TOLD = 8  # The most entries that are inserted after one message.
_SCANNED = 16_384  # The first characters of a message, which are searched.
_WORDS = 16  # The most words of a key; a longer key is never found.
_REMEMBERED = 16_384  # The number of messages whose entries are remembered.
_EXPANDED = 2**20  # The most bytes of a book's entries, macros expanded.
# A piece of text to normalize at once. Normalization sorts a run of combining
# marks in quadratic time, so that pieces must be short.
_PIECE = re.compile(r'\s*+\S{0,256}+')
# Thai and Lao, Burmese, Khmer, kana, Chinese characters, Hangul.
_UNSPACED = (
  '\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff'
  '\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff'
)
_WORD = re.compile(f'[{_UNSPACED}]|[^\\W{_UNSPACED}]+')


class Book:
  """A character's lore, indexed by the words of its keys.

  Attributes:
    texts: the entries' texts, macros expanded, by the entry's number.
  """

  def __init__(self, entries: Sequence[card_fields.Lore], char: str):
    """Indexes entries by their keys.

    Args:
      entries: a character's; constant ones, which the prefix has, and disabled
        ones are left out.
      char: replaces `{{char}}`.
    """
    self.texts: dict[int, str] = {}
    self._order: list[int] = []
    self._with_secondary: set[int] = set()
    self._tree: dict = {}
    self._found = recent.Recent(_REMEMBERED)
    numbered = sorted(enumerate(entries), key=lambda one: one[1].order)
    for number, entry in numbered:
      if entry.is_constant or not entry.is_enabled or not entry.content.strip():
        continue
      try:
        text = macros.expand_stable(entry.content, char)
      except macros.TooLarge:
        continue  # `check` refuses it today; an older version may have it.
      self._order.append(number)
      self.texts[number] = text.strip()
      for key in entry.keys:
        self._add(key, (number, False))
      for key in entry.secondary_keys:
        self._with_secondary.add(number)
        self._add(key, (number, True))

  def find_entries(self, text: str) -> tuple[int, ...]:
    """Returns the numbers of the entries whose keys a text has, by `order`.

    An entry with secondary keys needs one of each.
    """
    if not self._order:
      return ()
    key = recent.key(text)
    found = self._found.get(key)
    if found is None:
      found = self._look(text)
      self._found.put(key, found)
    return found

  def _look(self, text: str) -> tuple[int, ...]:
    words = _words(text[:_SCANNED])[:_SCANNED]
    seen, keys = set(), set()
    for begin in range(len(words)):
      node = self._tree
      for word in words[begin : begin + _WORDS]:
        node = node.get(word)
        if node is None:
          break
        if '' in node and id(node) not in keys:  # A key, for the first time.
          keys.add(id(node))
          seen |= node['']
    return tuple(
      number
      for number in self._order
      if (number, False) in seen
      and (number not in self._with_secondary or (number, True) in seen)
    )

  def _add(self, key: str, entry: tuple[int, bool]) -> None:
    words = _words(key)
    if not 1 <= len(words) <= _WORDS:
      return
    node = self._tree
    for word in words:
      node = node.setdefault(word, {})
    # No word is empty.
    node.setdefault('', set()).add(entry)


def check(fields: card_fields.Fields) -> None:
  """Refuses lore that is too large after its macros are expanded.

  Raises:
    macros.TooLarge: names the entry.
  """
  left, char = _EXPANDED, card_fields.display_name(fields)
  for number, entry in enumerate(fields.lore):
    try:
      text = macros.expand_stable(entry.content, char, min(left, macros.MOST))
    except macros.TooLarge as error:
      raise macros.TooLarge(f'lore[{number}].content: {error}') from None
    left -= len(text.encode())


def book(fields: card_fields.Fields) -> Book:
  """Returns the book of a character's lore; one object for equal lore."""
  return _book(fields.lore, card_fields.display_name(fields))


@functools.lru_cache(maxsize=64)
def _book(entries: tuple[card_fields.Lore, ...], char: str) -> Book:
  return Book(entries, char)


def _words(text: str) -> list[str]:
  plain = ''.join(
    unicodedata.normalize('NFKC', piece) for piece in _PIECE.findall(text)
  )
  return _WORD.findall(plain.casefold())
