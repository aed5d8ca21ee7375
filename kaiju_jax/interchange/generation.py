"""Reads how the authors of a folder draw text from their model.

generation_config.json    the settings of sampling; tokens that end a reply
tokenizer_config.json     `eos_token`, another one
config.json               the same settings, without a generation_config.json

`do_sample: false` takes the likeliest token. Penalties that `transformers` does
not have are read by their names here. Fields that would change the text and
have no counterpart here are ignored, and `Generation.ignored` lists them.
"""

import json
import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.interchange import fields as fields_lib
from kaiju_jax.interchange.gguf import folder as gguf_folder
from kaiju_jax.storage import files

TEMPLATE = 'chat_template.jinja'
NAMES = 'special_tokens_map.json'  # In older folders.
FILE, SETTINGS, CONFIG = (
  'generation_config.json',
  'tokenizer_config.json',
  'config.json',
)
# By name: the least.
_NUMBERS = {
  **dict.fromkeys(('temperature', 'top_p', 'min_p', 'repetition_penalty'), 0.0),
  **dict.fromkeys(('dry_multiplier', 'dry_base'), 0.0),
  **dict.fromkeys(('frequency_penalty', 'presence_penalty'), -2.0),
}
_COUNTS = ('repeat_last_n', 'dry_allowed_length', 'dry_penalty_last_n')
# Settings that older versions of `transformers` kept in config.json.
FIELDS = frozenset(
  [
    *(*_NUMBERS, 'top_k', 'do_sample', 'typical_p', 'max_new_tokens'),
    *('max_length', 'min_length', 'early_stopping', 'num_return_sequences'),
    *('num_beams', 'num_beam_groups', 'diversity_penalty', 'length_penalty'),
    *('no_repeat_ngram_size', 'encoder_no_repeat_ngram_size', 'bad_words_ids'),
    *('suppress_tokens', 'begin_suppress_tokens', 'remove_invalid_values'),
    *('exponential_decay_length_penalty', 'return_dict_in_generate'),
    *('output_scores', 'output_logits'),
  ]
)
# Fields that change no text that is drawn here.
_SILENT = frozenset(
  [
    '_from_model_config',
    'bos_token_id',
    'cache_implementation',
    'compile_config',
    'decoder_start_token_id',
    'output_attentions',
    'output_hidden_states',
    'output_logits',
    'output_scores',
    'pad_token_id',
    'return_dict_in_generate',
    'transformers_version',
    'use_cache',
  ]
)


class Generation(NamedTuple):
  """What a folder says about drawing text."""

  # Fields of `decoding.requests.sampling.Sampling`, those that the folder sets.
  sampling: dict[str, Any]
  ends: tuple[int, ...]  # The tokens that end a reply.
  # Fields that would change the text and are ignored, with their values, in
  # words.
  ignored: tuple[str, ...]


NONE = Generation({}, (), ())


def read(
  folder: pathlib.Path, tokenizer: tokenizer_lib.Tokenizer
) -> Generation:
  """Reads a folder's settings.

  Args:
    folder: the folder.
    tokenizer: the folder's tokenizer.

  Raises:
    OSError: a file cannot be read.
    ValueError: names the file, the field, its value and what would be right.
  """
  folder = gguf_folder.small_files(folder)
  file, found = _find_settings(folder)
  try:
    fields = fields_lib.Fields(found)
    sampling = _read_sampling(fields)
    ends = _read_ends(fields)
  except ValueError as error:
    raise ValueError(f'{file}: {error}') from error
  named = read_object(folder / SETTINGS).get('eos_token')
  if named:
    end = tokenizer.special(name_of(named))
    ends = ends if end is None else (*ends, end)
  known = {*sampling, *_SILENT, 'top_k', 'do_sample', 'eos_token_id'}
  ignored = [
    f'{name}={value!r:.40}'
    for name, value in sorted(found.items())
    if name not in known and value not in (None, False, 0, 1, [], {}, '')
  ]
  return Generation(sampling, tuple(dict.fromkeys(ends)), tuple(ignored))


def copy(folder: pathlib.Path) -> dict[str, str]:
  """Returns {name: text} of what an import keeps of a folder beside weights.

  The chat template and the names of tokens are kept as they are. There is
  always a generation_config.json, by which an import is told from an export.

  Raises:
    OSError: a file cannot be read.
    ValueError: config.json is no JSON object.
  """
  folder = gguf_folder.small_files(folder)
  kept = {FILE: json.dumps(_find_settings(folder)[1])}
  for name in FILE, SETTINGS, NAMES, TEMPLATE:
    if (folder / name).is_file():
      kept[name] = (folder / name).read_text()
  return kept


def _find_settings(folder: pathlib.Path) -> tuple[pathlib.Path, dict[str, Any]]:
  """Returns a file with settings of sampling, and them."""
  file = folder / FILE
  if found := read_object(file):
    return file, found
  # `transformers` makes the missing file of the model's config.
  file = folder / CONFIG
  kept = {*FIELDS, 'eos_token_id'}
  found = {name: x for name, x in read_object(file).items() if name in kept}
  return file, found


def read_object(path: pathlib.Path) -> dict[str, Any]:
  """Returns the JSON object of a file; an empty one if there is no file.

  Raises:
    OSError: the file cannot be read.
    ValueError: the file holds no JSON object.
  """
  if not path.is_file():
    return {}
  found = files.read_json(path)
  if not isinstance(found, dict):
    raise ValueError(f'{path}: must be a JSON object.')
  return found


def name_of(token: Any) -> str:
  """Returns a token's text, which may be a field of an object."""
  return token['content'] if isinstance(token, dict) else str(token)


def _read_sampling(fields: fields_lib.Fields) -> dict[str, Any]:
  sampling: dict[str, Any] = {
    name: fields.number(name, least)
    for name, least in _NUMBERS.items()
    if fields.has(name)
  }
  sampling |= {
    name: fields.count(name, least=-1) for name in _COUNTS if fields.has(name)
  }
  if fields.has('dry_sequence_breakers'):
    sampling['dry_sequence_breakers'] = fields.take('dry_sequence_breakers')
  if fields.has('top_k'):
    sampling['top_k'] = max(fields.count('top_k', least=-1), 0)
  if fields.has('do_sample') and not fields.flag('do_sample'):
    sampling['temperature'] = 0.0
  return sampling


def _read_ends(fields: fields_lib.Fields) -> tuple[int, ...]:
  ids = fields.take('eos_token_id')
  ids = [] if ids is None else ids
  ids = ids if isinstance(ids, list) else [ids]
  for one in ids:
    if isinstance(one, bool) or not isinstance(one, int) or one < 0:
      raise fields.error('eos_token_id', 'must be a token, or a list of tokens')
  return tuple(ids)
