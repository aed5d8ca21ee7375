"""Folders that cannot be served: one line each, before anything compiles."""

import json

import pytest

from kaiju_jax.runs import load
from tests.runs import toys

CODE = 'raise RuntimeError("planted: a folder was run")'


def folder_of(path, fields=None, tokenizer=None, **files):
  """Returns a folder with some fields and files changed."""
  toys.write_folder(path, **(fields or {}))
  content = json.loads((path / 'tokenizer.json').read_text())
  content |= tokenizer or {}
  files = {'tokenizer.json': json.dumps(content), 'modeling.py': CODE} | files
  for name, text in files.items():
    if text is None:
      (path / name).unlink(missing_ok=True)
    else:
      (path / name).write_text(text)
  return path


SLOW = {
  'pre_tokenizer': {
    'type': 'Split',
    'pattern': {'Regex': '(a+a+)+b'},
    'behavior': 'Isolated',
    'invert': False,
  }
}
CASES = {
  'sentencepiece': (
    {'tokenizer.json': None, 'tokenizer.model': 'x'},
    r'tokenizer\.model: not read; make a tokenizer\.json of it: .*save_pre',
  ),
  'tekken': (
    {'tokenizer.json': None, 'tekken.json': '{}'},
    r'tekken\.json: not read; make a tokenizer\.json',
  ),
  'no JSON': ({'tokenizer.json': '{'}, r'tokenizer\.json: not valid JSON'),
  'too many': (
    {'tokenizer': {'added_tokens': [{'id': 420, 'content': 'x'}]}},
    r'tokenizer\.json: 421 tokens, config\.json says vocab_size=420',
  ),
  'slow': (
    {'tokenizer': SLOW},
    r"the expression '\(a\+a\+\)\+b': .* repeats 'a'",
  ),
  'code': (
    {'fields': {'auto_map': {'AutoModel': 'modeling.Model'}}},
    r'config\.json: auto_map=.*must be absent: .* never run',
  ),
  'quantized': (
    {'fields': {'quantization_config': {'quant_method': 'awq'}}},
    r"quantization_config\.quant_method='awq': must be absent",
  ),
  'spellings': (
    {'fields': {'rope_theta': 7.0}},
    r'rope_theta=7\.0: must be rope_parameters\.rope_theta=500\.0',
  ),
  'pickle': (
    {'model.safetensors': None, 'pytorch_model.bin': 'x'},
    r'pytorch_model\.bin: not read, .* must be saved as safetensors',
  ),
}


@pytest.mark.parametrize('case', CASES)
def test_a_folder_is_refused_by_a_line(tmp_path, case):
  changes, message = CASES[case]
  path = folder_of(tmp_path / 'folder', **changes)
  with pytest.raises((ValueError, OSError), match=message) as caught:
    load.from_anywhere(path)
  assert '\n' not in str(caught.value) and 'planted' not in str(caught.value)
  assert str(path) in str(caught.value)


def test_a_whole_folder_is_read_and_none_of_its_code(tmp_path):
  loaded = load.from_anywhere(folder_of(tmp_path / 'folder'))
  assert loaded.config.vocab_size == 420 and not loaded.is_ours
