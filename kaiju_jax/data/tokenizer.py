"""Converts text to tokens: bytes, or a Hugging Face `tokenizer.json`.

Losses of different tokenizers compare per byte of UTF-8, so a text's size is
counted in bytes, never in tokens; `measure` returns how many bytes each token
stands for. `longest` lets a caller refuse a text that cannot fit before
encoding it.

Our guess: bytes as the default, because they need no file and no network. The
sources name no tokenizer.
"""

import hashlib
import pathlib
from typing import Protocol

import numpy as np

from kaiju_jax.storage import addresses

# Words, code, digits and other scripts, which tokenizers cut differently.
_SAMPLE = """The children's teachers, unlike their students, didn't answer.
  def f_2(x: list[int]) -> str:\t# naïve\n    return f"{x!r}\\n" * 12345
À bientôt! Größe, 東京, привет, 👍🏽.  Two  spaces;\n\n\nthree lines.
"""
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


class Tokenizer(Protocol):
  """A tokenizer as the data room uses it.

  Attributes:
    vocab_size: one more than the largest token.
    bos_id: the token that opens each document.
    longest: the most bytes of UTF-8 that one token stands for or decodes to. A
      text of n bytes has at least n / longest tokens. (A tokenizer that has no
      token for a word, or drops characters, may give fewer.)
    file: a hash of its file's bytes; '' for a tokenizer without a file.
  """

  vocab_size: int
  bos_id: int
  longest: int
  file: str

  def encode(self, text: str) -> np.ndarray:
    """Returns int32 tokens, without `bos_id`; lets other threads run."""

  def measure(self, text: str) -> np.ndarray:
    """Returns int32, how many bytes of `text` each of its tokens stands for.

    They add up to all bytes of the text, unless it has no token.
    """

  def locate(self, text: str) -> np.ndarray:
    """Returns int64 [n, 2], the characters of `text` in each of its tokens.

    They are the first character and one past the last. A character that several
    tokens share is in each of them.
    """

  def decode(self, tokens) -> str:
    """Returns the text of `tokens`; unreadable bytes become U+FFFD."""

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
    sizes = [len(character.encode()) for character in text]
    first = np.repeat(np.arange(len(text)), sizes)
    return np.stack([first, first + 1], axis=1)

  def decode(self, tokens) -> str:
    tokens = np.asarray(tokens, np.uint8)
    return tokens[tokens != self.bos_id].tobytes().decode(errors='replace')

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
    self.file = hashlib.blake2b(data, digest_size=16).hexdigest()
    try:
      self._tokenizer = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # The library raises nothing narrower.
      raise ValueError(
        f'data.tokenizer={path!r}: not a Hugging Face tokenizer.json: {error}'
      ) from error
    self._tokenizer.no_truncation()
    self._tokenizer.no_padding()
    opening = self._tokenizer.encode('').ids
    self._tokenizer.encode_special_tokens = True
    vocabulary = self._tokenizer.get_vocab()
    self.vocab_size = max(vocabulary.values()) + 1
    named = [vocabulary[name] for name in _BOS if name in vocabulary]
    if not opening and not named:
      raise ValueError(
        f'data.tokenizer={path!r}: adds no token at the start of a text and'
        f' has none of {", ".join(_BOS)}: there is nothing to open a document'
        ' with.'
      )
    self.bos_id = (opening or named)[0]
    # A token's name has at least a character for each of its bytes.
    longest = max(len(name.encode()) for name in vocabulary)
    self.longest = max(longest, Bytes.longest)

  def encode(self, text: str) -> np.ndarray:
    # A batch releases the interpreter's lock; `encode` would hold it for over a
    # second per megabyte.
    (encoding,) = self._tokenizer.encode_batch_fast(
      [text], add_special_tokens=False
    )
    return np.array(encoding.ids, np.int32)

  def measure(self, text: str) -> np.ndarray:
    # A token reaches from the end of the token before it to its own end: it
    # gets the spaces between the two, and the last token gets the text's rest.
    # If several tokens share a character, the first gets its bytes.
    offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
    ends = np.array([end for _, end in offsets], np.int64)
    ends = np.maximum.accumulate(ends)
    ends[-1:] = len(text)
    sizes = [len(character.encode()) for character in text]
    before = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return np.diff(before[ends], prepend=0).astype(np.int32)

  def locate(self, text: str) -> np.ndarray:
    found = self._tokenizer.encode(text, add_special_tokens=False).offsets
    return np.array(found, np.int64).reshape(-1, 2)

  def decode(self, tokens) -> str:
    return self._tokenizer.decode(np.asarray(tokens).tolist())

  def special(self, name: str) -> int | None:
    return self._tokenizer.token_to_id(name)

  def name(self, token: int) -> str:
    return self._tokenizer.id_to_token(token)


def load(path: str, vocab_size: int | None = None) -> Tokenizer:
  """Returns the tokenizer at `path`.

  Args:
    path: the path of a `tokenizer.json`; '' for bytes.
    vocab_size: V of the model that will read the tokens; None to skip the
      check.

  Raises:
    FileNotFoundError: no file at `path`.
    ValueError: not a tokenizer, or one with more tokens than the model has.
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
