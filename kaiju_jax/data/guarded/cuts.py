"""Finds where a text can be cut so that its pieces keep the text's tokens.

Between two characters a cut is free if no step of the tokenizer reads both
together: no added token holds both, nor does a normalizer join them, a match of
an expression span them, or a word hold both (without words, a token of a BPE
model). What is left of a cut then has the same tokens whatever is right of it,
except for the characters beside the cut, which both pieces overlap by.

Each step maps the characters left and right of the cut to what later steps see
there; there can be several, where a replacement depends on further characters.
A step of an unknown kind makes a tokenizer one that reads texts as a whole.
"""

from collections.abc import Callable
import functools
import itertools
import json
from typing import Any
import unicodedata

import tokenizers
from tokenizers import normalizers

from kaiju_jax.data.guarded import expressions

OVERLAP = 64  # Characters of context, besides the longest added token.
_TRIED = 64  # Places whose words are looked at.
_GPT2 = (
  r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
_WORDS = r'\w+|[^\w\s]+'  # Of the step `Whitespace`.
_BY_CHARACTER = {
  *('Lowercase', 'StripAccents', 'Nmt', 'ByteLevel', 'BertNormalizer'),
  *('NFC', 'NFD', 'NFKC', 'NFKD', 'Precompiled'),
}
_LETTERS_OF_HANGUL = (
  ('\u1100', '\u11ff'),
  ('\ua960', '\ua97f'),
  ('\ud7b0', '\ud7ff'),
)
_AT_ENDS = {'Prepend', 'Strip'}
_WORDS_BY_CHARACTER = {
  *('WhitespaceSplit', 'BertPreTokenizer', 'Punctuation', 'Digits'),
  'CharDelimiterSplit',
}

# What a step makes of the characters on each side; None for no free cut.
_Sides = tuple[frozenset[str], frozenset[str]]
_Step = Callable[[frozenset[str], frozenset[str]], _Sides | None]


class Cuts:
  """The free cuts of one tokenizer.

  Attributes:
    whole: why texts are read as a whole; '' where there are free cuts.
    overlap: characters on each side of a cut by which pieces must overlap.
  """

  def __init__(self, tokenizer: tokenizers.Tokenizer):
    """Analyzes a tokenizer."""
    self._tokenizer = tokenizer
    added = tokenizer.get_added_tokens_decoder().values()
    self.overlap: int = OVERLAP + max(
      (len(x.content) for x in added), default=0
    )
    self._model = tokenizer.model
    self._vocabulary = ''
    if isinstance(self._model, tokenizers.models.BPE):
      self._vocabulary = '\0'.join(tokenizer.get_vocab(False))
    self.whole = ''
    try:
      normalizer = _state(tokenizer.normalizer)
      self._steps = [_refuse_inside([x.content for x in added])]
      self._steps += map(_normalize, _flat(normalizer))
      # Some added tokens are found in the text behind the normalizer.
      normalize = getattr(tokenizer.normalizer, 'normalize_str', str)
      self._steps.append(
        _refuse_inside([normalize(x.content) for x in added if x.normalized])
      )
      self._steps += map(_find_words, _flat(_state(tokenizer.pre_tokenizer)))
    except ValueError as error:
      self.whole: str = str(error)
    # Such a token takes the spaces behind it, too.
    self._taking = frozenset(x.content[-1:] for x in added if x.rstrip)
    self._sides = functools.lru_cache(2**14)(self._find_sides)
    self._can_cut_word = functools.lru_cache(2**14)(self._is_word_free)

  def find(self, text: str, begin: int, end: int) -> int | None:
    """Returns the last free cut at begin…end - 1; None for none.

    `text` has `overlap` characters on each side of them, if the whole text has.
    """
    if self.whole:
      return None
    tried = 0
    for place in range(end - 1, begin - 1, -1):
      first, past = max(0, place - self.overlap), place + self.overlap
      is_free = self._sides(text[place - 1], text[place]) is not None
      # A normalizer can strip spaces at an end, and ours is none of the text's.
      if not is_free or text[place:past].isspace():
        continue
      around = text[first:past]
      encoding = self._tokenizer.encode(around, add_special_tokens=False)
      if self.count_left(encoding, place - first, around) is not None:
        return place
      tried += 1
      if tried == _TRIED:
        break
    return None

  def count_left(
    self, encoding: tokenizers.Encoding, place: int, text: str
  ) -> int | None:
    """Returns how many tokens of `text` are left of a place within it.

    None if it is no free cut. `encoding` is the text's.
    """
    sides = self._sides(text[place - 1], text[place])
    if sides is None:
      return None
    behind = (encoding.char_to_token(one) for one in range(place, len(text)))
    count = next((x for x in behind if x is not None), len(encoding.ids))
    if count and encoding.token_to_chars(count - 1)[1] > place:
      return None
    if count == len(encoding.ids):
      return count
    if encoding.token_to_chars(count)[0] < place:
      return None
    is_in_word = count and (
      encoding.token_to_word(count - 1) == encoding.token_to_word(count)
    )
    if is_in_word and not self._can_cut_word(sides):
      return None
    return count

  def _find_sides(self, left: str, right: str) -> _Sides | None:
    """Returns what the model sees beside a cut; None if it is not free."""
    if left.isspace() or left in self._taking:
      return None
    sides = frozenset(left), frozenset(right)
    for step in self._steps:
      sides = step(*sides)
      if sides is None:
        return None
    return sides

  def _is_word_free(self, sides: _Sides) -> bool:
    """Returns whether no token of the model spans a cut within a word."""
    return bool(
      self._vocabulary
      and not self._model.continuing_subword_prefix
      and not self._model.end_of_word_suffix
      and all(
        self._model.token_to_id(one) is not None
        for one in itertools.chain(*sides)
      )
      and not _are_inside(self._vocabulary, *sides)
    )


def _state(part: Any) -> dict[str, Any] | None:
  return None if part is None else json.loads(part.__getstate__())


def _flat(step: dict[str, Any] | None) -> list[dict[str, Any]]:
  """Returns the steps of a normalizer or pre-tokenizer."""
  if step is None:
    return []
  if step['type'] != 'Sequence':
    return [step]
  inner = step.get('normalizers') or step.get('pretokenizers') or []
  return [one for part in inner for one in _flat(part)]


def _are_inside(text: str, lefts: frozenset[str], rights: frozenset[str]):
  return any(a + b in text for a in lefts for b in rights)


def _refuse_inside(contents: list[str]) -> _Step:
  """Returns a step that refuses cuts within any of the contents."""
  joined = '\0'.join(contents)
  return lambda *sides: None if _are_inside(joined, *sides) else sides


def _normalize(step: dict[str, Any]) -> _Step:
  """Returns a step of the normalizer.

  Raises:
    ValueError: it is of an unknown kind.
  """
  kind = step['type']
  if kind in _AT_ENDS:
    return lambda *sides: sides
  if kind == 'Replace':
    return _replace(step['pattern'], step['content'])
  if kind not in _BY_CHARACTER:
    raise ValueError(f'its normalizer {kind}')
  one = normalizers.NFC()
  one.__setstate__(json.dumps(step).encode())
  can_join = kind[:2] == 'NF' or kind in ('BertNormalizer', 'Precompiled')

  def run(lefts, rights):
    if can_join and not all(map(_stands_alone, lefts | rights)):
      return None
    lefts, rights = (
      [one.normalize_str(x) for x in side] for side in (lefts, rights)
    )
    if not all(lefts + rights):
      return None  # What is left out lets its neighbours meet.
    return frozenset(x[-1] for x in lefts), frozenset(x[0] for x in rights)

  return run


def _stands_alone(character: str) -> bool:
  """Returns whether Unicode joins a character to none of its neighbours.

  Left out are marks, Hangul's letters, signs of formatting, what becomes one of
  these, and what lies outside of the basic plane.
  """
  if character.isascii():
    return True
  made = unicodedata.normalize('NFKC', character)
  return all(
    ord(one) < 0x10000
    and unicodedata.category(one)[0] in 'LNPSZ'
    and not any(first <= one <= last for first, last in _LETTERS_OF_HANGUL)
    and one != '\u0d4e'  # The one letter there that opens a cluster.
    for one in (character, made[:1], made[-1:])
  )


def _replace(pattern: dict[str, str], content: str) -> _Step:
  """Returns a step that replaces a string or the matches of an expression."""
  if 'Regex' in pattern:
    found = _analyze(pattern['Regex'], 'its normalizer')
    can_end = can_begin = found.can_match
    can_read = found.can_read
  else:
    string = pattern['String']
    if not string:
      raise ValueError("its normalizer's empty pattern")
    can_end, can_begin = string.endswith, string.startswith

    def can_read(left, right):
      return left + right in string

  def run(lefts, rights):
    if any(can_read(a, b) for a in lefts for b in rights):
      return None
    ends, begins = set(lefts), set(rights)
    if any(map(can_end, lefts)):
      ends.add(content[-1:])
    if any(map(can_begin, rights)):
      begins.add(content[:1])
    if '' in ends | begins:
      return None
    if lefts == {pattern.get('String')}:
      ends -= lefts
    if rights == {pattern.get('String')}:
      begins -= rights
    return frozenset(ends), frozenset(begins)

  return run


def _find_words(step: dict[str, Any]) -> _Step:
  """Returns a step of the pre-tokenizer.

  Raises:
    ValueError: it is of an unknown kind.
  """
  kind = step['type']
  if kind in _WORDS_BY_CHARACTER:
    return lambda *sides: sides
  if kind == 'Metaspace':
    return _replace({'String': ' '}, step['replacement'])
  if kind == 'Whitespace':
    return _match(_analyze(_WORDS, 'Whitespace').can_read)
  if kind == 'Split':
    pattern = step['pattern']
    if 'Regex' in pattern:
      return _match(_analyze(pattern['Regex'], 'its pre-tokenizer').can_read)
    return _match(lambda left, right: left + right in pattern['String'])
  if kind != 'ByteLevel':
    raise ValueError(f'its pre-tokenizer {kind}')
  letters = normalizers.ByteLevel()
  space = letters.normalize_str(' ')
  can_read = _analyze(_GPT2, 'ByteLevel').can_read

  def by_bytes(lefts, rights):
    if step['use_regex'] and _match(can_read)(lefts, rights) is None:
      return None
    begins = {letters.normalize_str(one)[0] for one in rights}
    if step['add_prefix_space']:
      begins.add(space)
    return frozenset(letters.normalize_str(x)[-1] for x in lefts), frozenset(
      begins
    )

  return by_bytes


def _match(can_read: Callable[[str, str], bool]) -> _Step:
  """Returns a step that refuses cuts within matches."""

  def run(lefts, rights):
    if any(can_read(a, b) for a in lefts for b in rights):
      return None
    return lefts, rights

  return run


def _analyze(pattern: str, where: str) -> expressions.Expression:
  try:
    return expressions.Expression(pattern)
  except ValueError as error:
    raise ValueError(
      f"{where}'s expression {pattern!r:.80}, which {error}"
    ) from error
