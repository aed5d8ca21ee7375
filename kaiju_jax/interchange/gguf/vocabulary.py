"""Makes a tokenizer.json and a tokenizer_config.json of a GGUF file's metadata.

    gpt2     byte-level BPE; `tokenizer.ggml.pre` names how texts are split
    llama    SentencePiece's BPE: merges follow from the scores of the tokens

Expressions are those of the models' own tokenizers. Unused tokens at the end,
with which files fill the table, are left out: they are never drawn.
Source: github.com/ggml-org/llama.cpp, src/llama-vocab.cpp.
"""

from collections.abc import Mapping
import enum
from typing import Any
from typing import NamedTuple

from kaiju_jax.interchange.gguf import metadata

_KEY = 'tokenizer.ggml.'
_GPT2 = (
  r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
_GPT4 = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s|"
  r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)
_TEKKEN = (
  r'[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*'
  r'[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?'
  r'[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|'
  r' ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)


class _Kind(enum.IntEnum):
  """Kinds of tokens, as `tokenizer.ggml.token_type` numbers them."""

  NORMAL = 1
  UNKNOWN = 2
  CONTROL = 3
  USER_DEFINED = 4
  UNUSED = 5
  BYTE = 6


class _Split(NamedTuple):
  """How a byte-level tokenizer splits a text into words."""

  expression: str  # A match is a word.
  parts_digits: bool = False  # Whether each digit is a word, before all else.
  # Whether a word that is a token is taken whole, whatever the merges say.
  ignores_merges: bool = False
  composes: bool = False  # Whether texts are normalized to NFC.
  # Whether texts begin with the first token where a file does not say.
  opens: bool = False


_SPLITS = {
  'gpt-2': _Split(_GPT2),
  'olmo': _Split(_GPT2),
  'smollm': _Split(_GPT2, parts_digits=True),
  'dbrx': _Split(_GPT4 % '{1,3}'),
  'smaug-bpe': _Split(_GPT4 % '{1,3}'),
  'llama-bpe': _Split(_GPT4 % '{1,3}', ignores_merges=True, opens=True),
  'qwen2': _Split(_GPT4 % '', composes=True),
  'tekken': _Split(_TEKKEN, ignores_merges=True, opens=True),
}


def files(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns the contents of tokenizer.json and of tokenizer_config.json.

  Raises:
    ValueError: names a key, its value and what would be right.
  """
  tokens, kinds = _tokens(fields)
  model = fields.get(f'{_KEY}model')
  if model == 'gpt2':
    made = _byte_level(fields, tokens)
  elif model == 'llama':
    made = _sentence_piece(fields, tokens, kinds)
  else:
    raise ValueError(
      f"{_KEY}model={model!r}: must be 'gpt2' or 'llama'; no other tokenizer is"
      ' read.'
    )
  special = {
    name: tokens[index]
    for name, key in {
      'bos_token': 'bos',
      'eos_token': 'eos',
      'unk_token': 'unknown',
      'pad_token': 'padding',
    }.items()
    if (index := token(fields, key, len(tokens))) is not None
  }
  made = {
    'version': '1.0',
    'truncation': None,
    'padding': None,
    'added_tokens': [
      {
        'id': index,
        'content': text,
        'single_word': False,
        'lstrip': False,
        'rstrip': False,
        'normalized': False,
        'special': kind != _Kind.USER_DEFINED,
      }
      for index, (text, kind) in enumerate(zip(tokens, kinds))
      if kind in (_Kind.CONTROL, _Kind.USER_DEFINED, _Kind.UNKNOWN)
    ],
    'post_processor': None,
    **made,
  }
  opens = model == 'llama'
  if model == 'gpt2' and 'bos_token' in special:
    opens = _SPLITS[fields[f'{_KEY}pre']].opens
  if fields.get(f'{_KEY}add_bos_token', opens):
    if 'bos_token' not in special:
      raise ValueError(f'{_KEY}bos_token_id: missing; texts begin with it.')
    made['post_processor'] = _opening(
      special['bos_token'], fields[f'{_KEY}bos_token_id']
    )
  settings = {'tokenizer_class': 'PreTrainedTokenizerFast', **special}
  template = fields.get('tokenizer.chat_template')
  if template is not None:
    settings['chat_template'] = template
  return made, settings


def token(fields: Mapping[str, Any], key: str, count: int) -> int | None:
  """Returns the token that `tokenizer.ggml.KEY_token_id` names; None for none.

  Raises:
    ValueError: there is no such token.
  """
  index = fields.get(f'{_KEY}{key}_token_id')
  if index is not None and not (type(index) is int and 0 <= index < count):
    raise ValueError(
      f'{_KEY}{key}_token_id={index!r}: must be one of {count:,} tokens.'
    )
  return index


def _tokens(fields: Mapping[str, Any]) -> tuple[list[str], list[int]]:
  """Returns tokens and their kinds, without those that fill the table."""
  tokens = fields.get(metadata.TOKENS)
  if not _is_list_of(tokens, str) or not tokens:
    raise ValueError(f'{metadata.TOKENS}: must be a list of strings.')
  kinds = fields.get(f'{_KEY}token_type', [_Kind.NORMAL.value] * len(tokens))
  if not _is_list_of(kinds, int) or len(kinds) != len(tokens):
    raise ValueError(f'{_KEY}token_type: must be a number for each token.')
  count = len(tokens)
  while count and kinds[count - 1] == _Kind.UNUSED:
    count -= 1
  tokens = tokens[:count]
  if len({*tokens}) != count:
    raise ValueError(f'{metadata.TOKENS}: must be different from each other.')
  return tokens, kinds[:count]


def _is_list_of(found: Any, kind: type) -> bool:
  return isinstance(found, list) and all(type(one) is kind for one in found)


def _byte_level(fields: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
  """Returns what is byte-level BPE's own in a tokenizer.json."""
  pre = fields.get(f'{_KEY}pre')
  if pre not in _SPLITS:
    raise ValueError(
      f'{_KEY}pre={pre!r}: must be one of {", ".join(_SPLITS)}: no other way to'
      ' split a text into words is known.'
    )
  split = _SPLITS[pre]
  merges = fields.get(f'{_KEY}merges')
  if not _is_list_of(merges, str):
    raise ValueError(f'{_KEY}merges: must be a list of strings.')
  pairs = [one.split(' ') for one in merges]
  known = {*tokens}
  for pair in pairs:
    if len(pair) != 2 or not {*pair, ''.join(pair)} <= known:
      raise ValueError(
        f'{_KEY}merges: {" ".join(pair)!r}: must be two tokens that make one.'
      )
  bytes_alone = {
    'type': 'ByteLevel',
    'add_prefix_space': False,
    'trim_offsets': True,
    'use_regex': False,
  }
  steps = [
    {
      'type': 'Split',
      'pattern': {'Regex': split.expression},
      'behavior': 'Isolated',
      'invert': False,
    },
    bytes_alone,
  ]
  if split.parts_digits:
    steps = [{'type': 'Digits', 'individual_digits': True}, *steps]
  return {
    'normalizer': {'type': 'NFC'} if split.composes else None,
    'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': steps},
    'decoder': bytes_alone,
    'model': _bpe(tokens, pairs, ignore_merges=split.ignores_merges),
  }


def _sentence_piece(
  fields: Mapping[str, Any], tokens: list[str], kinds: list[int]
) -> dict[str, Any]:
  """Returns what is SentencePiece's own in a tokenizer.json."""
  scores = fields.get(f'{_KEY}scores')
  if not _is_list_of(scores, float) or len(scores) < len(tokens):
    raise ValueError(f'{_KEY}scores: must be a number for each token.')
  unknown = token(fields, 'unknown', len(tokens))
  begins = fields.get(f'{_KEY}add_space_prefix', True)
  space = {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '▁'}
  steps = [{'type': 'Prepend', 'prepend': '▁'}] * begins + [space]
  undo = [
    {'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' '},
    {'type': 'ByteFallback'},
    {'type': 'Fuse'},
    *([{'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}] * begins),
  ]
  return {
    'normalizer': {'type': 'Sequence', 'normalizers': steps},
    'pre_tokenizer': None,
    'decoder': {'type': 'Sequence', 'decoders': undo},
    'model': _bpe(
      tokens,
      _merges(tokens, kinds, scores),
      unk_token=None if unknown is None else tokens[unknown],
      fuse_unk=True,
      byte_fallback=True,
    ),
  }


def _bpe(tokens: list[str], merges: list[Any], **own: Any) -> dict[str, Any]:
  """Returns the model of a tokenizer.json: tokens, and pairs that make one."""
  return {
    'type': 'BPE',
    'dropout': None,
    'unk_token': None,
    'continuing_subword_prefix': None,
    'end_of_word_suffix': None,
    'fuse_unk': False,
    'byte_fallback': False,
    'ignore_merges': False,
    'vocab': {text: index for index, text in enumerate(tokens)},
    'merges': merges,
    **own,
  }


def _merges(
  tokens: list[str], kinds: list[int], scores: list[float]
) -> list[tuple[str, str]]:
  """Returns all pairs of tokens that make another, the best one first."""
  plain = {
    text: index
    for index, (text, kind) in enumerate(zip(tokens, kinds))
    if kind in (_Kind.NORMAL, _Kind.USER_DEFINED)
  }
  found = []
  for text, index in plain.items():
    if kinds[index] != _Kind.NORMAL:
      continue
    for place in range(1, len(text)):
      first, second = text[:place], text[place:]
      if first in plain and second in plain:
        order = -scores[index], plain[first], plain[second]
        found.append((order, (first, second)))
  return [pair for _, pair in sorted(found)]


def _opening(bos: str, index: int) -> dict[str, Any]:
  """Returns the step that puts a token before each text."""
  one = {'SpecialToken': {'id': bos, 'type_id': 0}}
  return {
    'type': 'TemplateProcessing',
    'single': [one, {'Sequence': {'id': 'A', 'type_id': 0}}],
    'pair': [
      one,
      {'Sequence': {'id': 'A', 'type_id': 0}},
      one,
      {'Sequence': {'id': 'B', 'type_id': 0}},
    ],
    'special_tokens': {bos: {'id': bos, 'ids': [index], 'tokens': [bos]}},
  }
