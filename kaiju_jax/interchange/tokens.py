"""Writes a model's tokenizer as `transformers` reads it, beside the weights.

tokenizer.json        in the format of the `tokenizers` library
tokenizer_config.json settings that `AutoTokenizer` needs

The exported tokenizer returns the tokens that training saw: BOS, then the
text's own tokens; special tokens that a text spells out count as characters.
Therefore `write` makes the tokenizer put BOS before each text, unless it does
so already. No token ends a text, because training documents have no end token.

The byte tokenizer has a vocabulary of 256 characters, one per byte, in the
alphabet of byte-level tokenizers, and no merges. Byte 0, which no text
contains, is '<s>'.
"""

from collections.abc import Iterator
import pathlib
from typing import Any

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data.guarded import client
from kaiju_jax.data.guarded import process
from kaiju_jax.interchange import generation
from kaiju_jax.interchange.gguf import folder as gguf_folder
from kaiju_jax.storage import files

FILE = 'tokenizer.json'
BYTES = 256  # Tokens of the byte tokenizer.
_BYTES_BOS = '<s>'
# What the texts of a trial repeat, and what ends them, so that no match of an
# expression reaches the end.
_UNITS = ('a', ' ', '\n', '1', "'", '.', 'é', 'a ', 'a1', ' \n')
_END = '\x07'
_LETTERS = 16  # Further units, from the expressions themselves.
# Tokenizers in forms that are not read.
_OTHERS = (
  'tokenizer.model',
  'tekken.json',
  'spiece.model',
  'vocab.json',
  'vocab.txt',
)


def write(folder: pathlib.Path, path: str, config: Any) -> int:
  """Writes both files.

  Args:
    folder: the folder of the files.
    path: the path of a `tokenizer.json`, '' for bytes.
    config: the model's config.

  Returns:
    The id of the token that opens each document.

  Raises:
    FileNotFoundError, ValueError: see `data.tokenizer.load`.
  """
  import tokenizers

  read = tokenizer_lib.load(path, config.vocab_size)
  bos_id = read.bos_id
  found = tokenizers.Tokenizer.from_file(path) if path else _bytes()
  found.no_truncation()
  found.no_padding()
  bos = found.id_to_token(bos_id)
  if not path or read.opening != [bos_id]:
    found.post_processor = tokenizers.processors.TemplateProcessing(
      single=[bos, '$A'],
      pair=[bos, '$A', bos, '$B'],
      special_tokens=[(bos, bos_id)],
    )
  found.save(str(folder / FILE))
  files.write_json(folder / 'tokenizer_config.json', _settings(bos, config))
  return bos_id


def find(folder: pathlib.Path, vocab_size: int) -> str:
  """Returns the path of a folder's tokenizer.json, checked; '' for none.

  Args:
    folder: a folder of Hugging Face files or a GGUF file, from anybody.
    vocab_size: tokens of its model.

  Raises:
    OSError: the file cannot be read.
    ValueError: there is another tokenizer alone; the file is no JSON object,
      has more tokens than the model, or takes too long for a text.
  """
  folder = gguf_folder.small_files(folder)
  path = folder / FILE
  if not path.is_file():
    others = [name for name in _OTHERS if (folder / name).is_file()]
    if others:
      raise ValueError(
        f'{folder}: {others[0]}: not read; make a {FILE} of it:'
        ' transformers.AutoTokenizer.from_pretrained(FOLDER)'
        '.save_pretrained(FOLDER).'
      )
    return ''
  content = generation.read_object(path)
  count = _count(content)
  if count > vocab_size:
    raise ValueError(
      f'{folder}: {FILE}: {count:,} tokens, config.json says'
      f' vocab_size={vocab_size:,}: must be at least as many.'
    )
  try:
    _try(path.read_bytes(), content)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  return str(path)


def _try(data: bytes, content: dict[str, Any]) -> None:
  """Refuses a tokenizer that takes too long for texts that many take long for.

  A server would refuse such texts, too, but each would cost it that time.

  Raises:
    ValueError: names the text.
  """
  tokenizer = client.open_tokenizer(data, spells_special=True)
  steps = [content.get(name) for name in ('normalizer', 'pre_tokenizer')]
  patterns = sorted({*_list_patterns(steps)})
  letters = {one for text in patterns for one in text if one.isalnum()}
  for unit in (*_UNITS, *sorted(letters - {*_UNITS})[:_LETTERS]):
    text = unit * ((process.PIECE - 1) // len(unit)) + _END
    try:
      for _ in tokenizer.encode(text):
        pass
    except ValueError as error:
      whose = f'the expression{"s" * (len(patterns) > 1)} ' if patterns else ''
      drawn = ', '.join(f'{one!r:.80}' for one in patterns[:4])
      raise ValueError(
        f'{whose}{drawn}: a text of {len(text):,} characters that repeats'
        f' {unit!r}: {error}'
      ) from error


def _list_patterns(part: Any) -> Iterator[str]:
  """Yields the regular expressions in a part of a tokenizer.json."""
  if isinstance(part, dict):
    if isinstance(part.get('Regex'), str):
      yield part['Regex']
    part = [*part.values()]
  for inner in part if isinstance(part, list) else ():
    yield from _list_patterns(inner)


def _count(content: dict[str, Any]) -> int:
  """Returns one more than the largest token of a tokenizer.json."""
  model, added = content.get('model'), content.get('added_tokens')
  found = model.get('vocab') if isinstance(model, dict) else None
  ids = [one.get('id') for one in added or () if isinstance(one, dict)]
  ids += found.values() if isinstance(found, dict) else [len(found or ()) - 1]
  return 1 + max((one for one in ids if isinstance(one, int)), default=-1)


def _settings(bos: str, config) -> dict[str, Any]:
  return {
    'tokenizer_class': 'PreTrainedTokenizerFast',
    'bos_token': bos,
    'clean_up_tokenization_spaces': False,
    'model_max_length': config.max_length,
    'split_special_tokens': True,
  }


def _bytes():
  import tokenizers

  vocabulary = {_character(byte): byte for byte in range(1, 256)}
  found = tokenizers.Tokenizer(
    tokenizers.models.BPE(vocab={_BYTES_BOS: 0, **vocabulary}, merges=[])
  )
  found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
    add_prefix_space=False, use_regex=False
  )
  found.decoder = tokenizers.decoders.ByteLevel()
  found.add_special_tokens([_BYTES_BOS])
  return found


def _character(byte: int) -> str:
  """Returns the printable character for a byte in byte-level vocabularies.

  Bytes that print in Latin-1 stand for themselves. The others get, in order,
  the characters from U+0100 on.
  """
  prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  if byte in prints:
    return chr(byte)
  return chr(0x100 + sum(other not in prints for other in range(byte)))
