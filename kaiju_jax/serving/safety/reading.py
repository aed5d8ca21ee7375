"""Normalizes texts for the gate, so that trivial disguises have no effect.

There are two readings of a text:

    plain     compatibility forms (NFKC: full-width, circled and mathematical
              letters become letters), case folded, without invisible
              characters, with one space for any run of spaces
    skeleton  only the letters and digits of `plain`: no spaces or punctuation
              ('z o r b' is 'zorb'), no accents, one letter for letters that
              look alike (Cyrillic 'о', '0', 'ᴏ'), one for a repeated letter

A change to a reading needs a new format of the gate's file, because existing
gates were trained and certified with the readings as they are.

Our guess: which characters are invisible (Unicode's default ignorables, control
characters, marks that do not combine with a letter), and which letters look
alike. Ciphers and paraphrases pass; the token-level head must find those.
"""

from collections.abc import Iterator
import functools
import itertools
import re
import unicodedata

READINGS = 'plain', 'skeleton'

_SURROGATES = re.compile('[\ud800-\udfff]')
# Default ignorables, format characters, and controls other than white space.
_IGNORED = (
  '\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160'
  '\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164'
  '\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb'
  '\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff'
)
# Marks that combine with any letter, mostly Latin; no vowel signs of other
# scripts.
_MARKS = '\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f'
_INVISIBLE = re.compile(f'[{_IGNORED}]+')
_LOOSE = re.compile(f'[{_IGNORED}{_MARKS}]+')
_ACCENTS = re.compile(f'[{_MARKS}]+')
# The Braille blank looks like a space, but Unicode does not class it as one.
_SPACES = re.compile(r'[\s\u2800]+')
_GAPS = re.compile(rf'[\s\u2800{_IGNORED}]{{2,}}')
_LETTER = re.compile(r'[^\W_]')
_NO_LETTERS = re.compile(r'[\W_]+')
# All but the last of a repeated letter.
_REPEATED = re.compile(r'(.)(?=\1)')
# Normalizing sorts a run of marks, in quadratic time.
_LONGEST_RUN = 30


def plain(text: str) -> str:
  """Returns the plain reading of any text."""
  if text.isascii():
    return _SPACES.sub(' ', _INVISIBLE.sub('', text.lower())).strip()
  text = _SURROGATES.sub('\ufffd', text)
  text = _shorter_runs(_INVISIBLE.sub('', _GAPS.sub(_gap, text)))
  text = unicodedata.normalize('NFKC', text).casefold()
  text = unicodedata.normalize('NFKC', text)
  # A mark that is left after composing does not combine with a letter: it is
  # drawn through or around one.
  return _SPACES.sub(' ', _LOOSE.sub('', text)).strip()


def skeleton(text: str) -> str:
  """Returns the skeleton of a text that `plain` returned."""
  if not text.isascii():
    # Decomposed to take accents off, and composed again for other scripts.
    text = _ACCENTS.sub('', unicodedata.normalize('NFD', text))
    text = unicodedata.normalize('NFC', text)
  text = _NO_LETTERS.sub('', text.translate(_ALIKE))
  return _REPEATED.sub('', text)


def window(text: str, size: int) -> str:
  """Returns the last `size` characters of `plain(text)`.

  Invisible characters and runs of spaces do not count, so that they cannot push
  a text out of the window. Only the end of a long text is read.
  """
  # Few at first: NFKC may expand one character to 18.
  taken = max(1, size // 4)
  while True:
    read = plain(text[-taken:])
    if len(read) >= size or taken >= len(text):
      return read[-size:]
    taken *= 8


def parts(text: str, size: int, letters: int) -> Iterator[str]:
  """Yields `plain(text)` in parts of about `size` characters, first to last.

  Each segment of the whole text (`segments`) is a segment of some part.

  Args:
    text: any text.
    size: characters per part. The last part may have fewer, and a part with few
      letters may have more.
    letters: letters and digits per segment, even.
  """
  text = plain(text)
  pieces = [text]
  if len(text) > size:
    pieces = _pieces(letters // 2).findall(text) or pieces
  first = 0
  while True:
    last, count = first + 1, len(pieces[first])
    while last < len(pieces) and (count < size or last < first + 2):
      count += len(pieces[last])
      last += 1
    yield ''.join(pieces[first:last])
    if last == len(pieces):
      return
    first = last - 1  # Two neighbours make a segment.


def segments(text: str, letters: int) -> list[str]:
  """Returns overlapping segments of a text, of `letters` letters and digits.

  Each segment begins half a segment after the one before, so that any passage
  of at most half as many letters lies whole in one segment. Other characters do
  not count, so that they cannot stretch a word over several segments.

  Args:
    text: a text that `plain` returned.
    letters: letters and digits per segment, even and at least 2; the last may
      have fewer.
  """
  if not _LETTER.search(text):
    return [text]
  pieces = _pieces(letters // 2).findall(text)
  if len(pieces) < 3:
    return [text]
  return [first + second for first, second in itertools.pairwise(pieces)]


@functools.cache
def _pieces(letters: int) -> re.Pattern:
  """Returns the pattern of a piece of at most `letters` letters and digits."""
  # Possessive, so that texts of many marks and few letters take no longer.
  return re.compile(rf'(?:[\W_]*+[^\W_]){{1,{letters}}}+[\W_]*+')


def _gap(match: re.Match) -> str:
  return ' ' if _SPACES.search(match[0]) else ''


def _shorter_runs(text: str) -> str:
  """Cuts runs of combining marks, of any script, to `_LONGEST_RUN`."""
  kept, run = [], 0
  for x in text:
    run = run + 1 if unicodedata.combining(x) else 0
    if run <= _LONGEST_RUN:
      kept.append(x)
  return text if len(kept) == len(text) else ''.join(kept)


def _alike() -> dict[int, str]:
  """Returns the table of look-alike letters and their plain forms."""
  pairs = (
    ('013457@$', 'oieastas'),
    # Cyrillic, Greek, and Latin letters with a stroke or without a dot.
    ('авекмнорстухіјѕһԁԛԝь', 'abekmhopctyxijshdqwb'),
    ('αβεηικνορτυχω', 'abenikvoptuxw'),
    ('ɑɡıłøđħŧƶſ', 'agilodhtzs'),
    # Small capitals.
    ('ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ', 'abcdefghijklmnoprstuvwyz'),
  )
  alike = {}
  for letters, plainer in pairs:
    alike |= dict(zip(map(ord, letters), plainer, strict=True))
  # Letters in dark circles and squares, and the regional indicators of flags.
  for first in 0x1F150, 0x1F170, 0x1F1E6:
    alike |= {first + n: chr(ord('a') + n) for n in range(26)}
  return alike


_ALIKE = _alike()
