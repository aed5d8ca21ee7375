"""Converts text to tokens: bytes, or a Hugging Face `tokenizer.json`.

Losses of different tokenizers compare per byte of UTF-8, so a text's size is
counted in bytes, never in tokens; `measure` returns how many bytes each token
stands for. `longest` lets a caller refuse a text that cannot fit before
encoding it.

A `tokenizer.json` may come from a stranger, so it encodes in guarded processes
(`guarded/`), piece by piece: a text takes memory in proportion to its size, and
one that takes too long raises `Refused`.

Our guess: bytes as the default, because they need no file and no network. The
sources name no tokenizer.
"""

import array
from collections.abc import Sequence
import hashlib
import json
import pathlib
import re
from typing import Any
from typing import Protocol

import numpy as np

from kaiju_jax.data.guarded import client
from kaiju_jax.storage import addresses

# Words, code, digits and other scripts, which tokenizers cut differently.
_SAMPLE = """The children's teachers, unlike their students, didn't answer.
  def f_2(x: list[int]) -> str:\t# naïve\n    return f"{x!r}\\n" * 12345
À bientôt! Größe, 東京, привет, 👍🏽.  Two  spaces;\n\n\nthree lines.
"""
# The first characters with two, three and four bytes of UTF-8.
_LONGER = (0x80, 0x800, 0x10000)
_GROWTH = 16  # Most bytes that a decoder makes of one.
# Opens the hash of a file, and no hash of behaviour, which is hex alone.
_OF_FILE = 'file-'
_BOS = (
  '<s>',
  '<bos>',
  '<|begin_of_text|>',
  '<|endoftext|>',
  '[BOS]',
  '[CLS]',
  '</s>',
  '<eos>',
  '[SEP]',
)

_UNREADABLE = '\ufffd'
# How files name tokens of single bytes: '<0xE2>', or each byte as a character
# that can be printed, those that cannot as the ones from U+0100 on.
_BYTE = re.compile('<0x([0-9A-Fa-f]{2})>')
_PRINTED = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = [one for one in range(0x100) if one not in _PRINTED]
_BYTE_NAMES = {chr(one): one for one in _PRINTED} | {
  chr(0x100 + number): one for number, one in enumerate(_HIDDEN)
}


class Tokenizer(Protocol):
  """A tokenizer as the data room uses it."""

  vocab_size: int  # One more than the largest token.
  bos_id: int  # The token that opens each document.
  # The most bytes of UTF-8 that one token stands for or decodes to. A text of n
  # bytes has at least n / longest tokens. (A tokenizer that has no token for a
  # word, or drops characters, may give fewer.)
  longest: int
  file: str  # A hash of its file's bytes; '' for a tokenizer without a file.

  def encode(self, text: str) -> np.ndarray:
    """Returns int32 tokens, without `bos_id`; lets other threads run.

    Raises:
      Refused: a text that the tokenizer takes too long for, or refuses.
    """

  def measure(self, text: str) -> np.ndarray:
    """Returns int32, how many bytes of `text` each of its tokens stands for.

    They add up to all bytes of the text, unless it has no token.
    """

  def locate(self, text: str) -> np.ndarray:
    """Returns int64 [n, 2], the characters of `text` in each of its tokens.

    They are the first character and one past the last. A character that several
    tokens share is in each of them.
    """

  def decode(self, tokens: Sequence[int]) -> str:
    """Returns the text of `tokens`; unreadable bytes become U+FFFD."""

  def spell(self, token: int) -> bytes:
    """Returns the bytes of UTF-8 that a token adds to a text.

    They may be a part of a character. A token that reads as nothing has none.
    """

  def special(self, name: str) -> int | None:
    """Returns the token that the file calls `name`; None without one."""

  def name(self, token: int) -> str:
    """Returns what `special` finds a token by."""


class Bytes:
  """One token per byte of UTF-8; byte 0, which no text holds, is BOS.

  Its one special token has the name of its character, '\\0'.
  """

  vocab_size = 256
  bos_id = 0
  # A byte that is no character decodes to U+FFFD, which has three bytes.
  longest = 3
  file = ''

  def encode(self, text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

  def measure(self, text: str) -> np.ndarray:
    return np.ones(len(text.encode()), np.int32)

  def locate(self, text: str) -> np.ndarray:
    first = np.repeat(np.arange(len(text)), _count_bytes(text))
    return np.stack([first, first + 1], axis=1)

  def decode(self, tokens: Sequence[int]) -> str:
    tokens = np.asarray(tokens, np.uint8)
    return tokens[tokens != self.bos_id].tobytes().decode(errors='replace')

  def spell(self, token: int) -> bytes:
    text = self.decode([token])
    return bytes([token]) if _UNREADABLE in text else text.encode()

  def special(self, name: str) -> int | None:
    return self.bos_id if name == chr(self.bos_id) else None

  def name(self, token: int) -> str:
    return chr(token)


class HuggingFace:
  """A `tokenizer.json` of the `tokenizers` library.

  Text that spells a special token ('<s>') is encoded as plain characters.
  """

  def __init__(self, path: str):
    """Reads the file.

    Raises:
      FileNotFoundError: no file at `path`.
      ValueError: an address; a file that is no tokenizer; or a tokenizer
        without a token that opens documents.
    """
    import tokenizers  # The import takes a second, which bytes do not need.

    addresses.refuse(path, f'data.tokenizer={path!r}')
    if not pathlib.Path(path).is_file():
      raise FileNotFoundError(
        f'data.tokenizer={path!r}: no such file; expected a Hugging Face'
        " tokenizer.json, or '' for bytes."
      )
    data = pathlib.Path(path).read_bytes()
    self.file: str = hashlib.blake2b(data, digest_size=16).hexdigest()
    try:
      self._guarded = client.open_tokenizer(data, spells_special=True)
      # What a guarded process has read can be read here, too. It decodes.
      self._tokenizer = tokenizers.Tokenizer.from_buffer(data)
      growth = _bound_growth(self._tokenizer.decoder)
    except Exception as error:  # The library raises nothing narrower.
      raise ValueError(
        f'data.tokenizer={path!r}: not a Hugging Face tokenizer.json: {error}'
      ) from error
    self.opening: list[int] = self._guarded.opening
    vocabulary = self._tokenizer.get_vocab()
    self.vocab_size: int = max(vocabulary.values()) + 1
    named = [vocabulary[name] for name in _BOS if name in vocabulary]
    if not self.opening and not named:
      raise ValueError(
        f'data.tokenizer={path!r}: adds no token at the start of a text and'
        f' has none of {", ".join(_BOS)}: there is nothing to open a document'
        ' with.'
      )
    self.bos_id: int = (self.opening or named)[0]
    # A token's name has at least a character for each of its bytes.
    longest = max(len(name.encode()) for name in vocabulary)
    self.longest: int = max(growth * longest, Bytes.longest)
    self._anchor = self.encode('a').tolist()

  def encode(self, text: str) -> np.ndarray:
    found = array.array('i')
    for tokens, _ in self._guarded.encode(text):
      found.frombytes(tokens.tobytes())
    return np.frombuffer(found, np.int32)

  def measure(self, text: str) -> np.ndarray:
    # A token reaches from the end of the token before it to its own end: it
    # gets the spaces between the two, and the last token gets the text's rest.
    # If several tokens share a character, the first gets its bytes.
    found, end = array.array('i'), 0
    for _, places in self._guarded.encode(text, places=True):
      ends = np.maximum.accumulate(np.append(end, places[:, 1]))
      before = np.append(0, np.cumsum(_count_bytes(text[end : ends[-1]])))
      sizes = np.diff(before[ends - end]).astype(np.int32)
      found.frombytes(sizes.tobytes())
      end = ends[-1]
    if found:
      found[-1] += len(text[end:].encode())
    return np.frombuffer(found, np.int32)

  def locate(self, text: str) -> np.ndarray:
    found = self._guarded.encode(text, places=True)
    return np.concatenate([places for _, places in found])

  def decode(self, tokens: Sequence[int]) -> str:
    return self._tokenizer.decode(np.asarray(tokens).tolist())

  def spell(self, token: int) -> bytes:
    # Behind another one: at the beginning of a text, spaces may be dropped.
    before = self._anchor
    text = self.decode([*before, token]).removeprefix(self.decode(before))
    if _UNREADABLE not in text:
      return text.encode()
    # A part of a character: its name says which bytes it is.
    name = self.name(token)
    if match := _BYTE.fullmatch(name):
      return bytes([int(match[1], 16)])
    if all(one in _BYTE_NAMES for one in name):
      return bytes(_BYTE_NAMES[one] for one in name)
    return text.encode()

  def special(self, name: str) -> int | None:
    return self._tokenizer.token_to_id(name)

  def name(self, token: int) -> str:
    return self._tokenizer.id_to_token(token)


def _count_bytes(text: str) -> np.ndarray:
  """Returns int64, how many bytes of UTF-8 each character has."""
  codes = np.frombuffer(text.encode('utf-32-le'), np.uint32)
  return 1 + np.searchsorted(_LONGER, codes, side='right')


def _bound_growth(decoder: Any) -> int:
  """Returns how many bytes a decoder makes of one, at most.

  Raises:
    ValueError: it can take a time or make a text out of proportion.
  """
  steps = [] if decoder is None else [json.loads(decoder.__getstate__())]
  growth = 1
  while steps:
    step = steps.pop()
    steps += step.get('decoders', ())
    if step['type'] != 'Replace':
      continue
    pattern = step['pattern'].get('String', '').encode()
    if not pattern:
      raise ValueError(
        f'decoder: Replace of {step["pattern"]}: must be of a string, which'
        ' takes time in proportion to a text.'
      )
    growth *= -(-len(step['content'].encode()) // len(pattern)) or 1
    if growth > _GROWTH:
      raise ValueError(
        f'decoder: Replace makes a text {growth} times as long: at most'
        f' {_GROWTH} times.'
      )
  return growth


def load(path: str, vocab_size: int | None = None) -> Tokenizer:
  """Returns the tokenizer at `path`, a `tokenizer.json`; '' for bytes.

  Raises:
    FileNotFoundError: no file at `path`.
    ValueError: not a tokenizer, or one with more tokens than `vocab_size`
      (unchecked for None).
  """
  tokenizer = HuggingFace(path) if path else Bytes()
  if vocab_size is not None and tokenizer.vocab_size > vocab_size:
    raise ValueError(
      f'model.vocab_size={vocab_size}: must be at least'
      f' {tokenizer.vocab_size}, the vocabulary of'
      f' {f"data.tokenizer={path!r}" if path else "bytes"}.'
    )
  return tokenizer


def digest(tokenizer: Tokenizer) -> str:
  """Returns a hash of the tokenizer's file, or of what it does without one."""
  return _OF_FILE + tokenizer.file if tokenizer.file else hash_use(tokenizer)


def hash_use(tokenizer: Tokenizer) -> str:
  """Returns a hash of a tokenizer's behaviour; decodes each of its tokens.

  It covers the text of each token and the tokens of a sample text, so that a
  file that was written anew, or bytes in a `tokenizer.json`, hash alike.
  """
  sums = hashlib.blake2b(digest_size=16)
  sums.update(f'{tokenizer.vocab_size} {tokenizer.bos_id}'.encode())
  for token in range(tokenizer.vocab_size):
    sums.update(tokenizer.decode([token]).encode() + b'\0')
  sums.update(np.asarray(tokenizer.encode(_SAMPLE), np.int64).data)
  return sums.hexdigest()
