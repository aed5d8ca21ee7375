"""A folder's settings of sampling, and the tokens that end a reply."""

import json

import pytest

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.interchange import generation
from kaiju_jax.interchange.gguf import folder as gguf_folder
from tests.interchange.templates import shapes


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
  path = shapes.write_folder(tmp_path_factory.mktemp('tokenizer'))
  return tokenizer_lib.load(str(path / 'tokenizer.json'))


PENALTIES = json.loads("""
  {"frequency_penalty": -0.5, "presence_penalty": 0.5, "repeat_last_n": -1,
   "dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2,
   "dry_penalty_last_n": 512, "dry_sequence_breakers": ["\\n"]}
""")


def _write(folder, found, **others):
  (folder / 'generation_config.json').write_text(json.dumps(found))
  for name, fields in others.items():
    (folder / f'{name}.json').write_text(json.dumps(fields))
  return folder


def test_settings_are_read_and_what_is_not_done_is_named(tmp_path, tokenizer):
  folder = _write(
    tmp_path,
    {
      'do_sample': True,
      'temperature': 0.6,
      'top_k': 20,
      'top_p': 0.95,
      'min_p': None,
      'repetition_penalty': 1.05,
      'eos_token_id': [7, 9],
      'pad_token_id': 9,
      'num_beams': 1,
      'typical_p': 0.5,
      'max_new_tokens': 2048,
      'transformers_version': '4.51.0',
    },
    tokenizer_config={'eos_token': {'content': '</s>'}},
  )
  found = generation.read(folder, tokenizer)
  assert found.sampling == {
    'temperature': 0.6,
    'top_k': 20,
    'top_p': 0.95,
    'repetition_penalty': 1.05,
  }
  assert found.ends == (7, 9, tokenizer.special('</s>'))
  assert found.ignored == ('max_new_tokens=2048', 'typical_p=0.5')


@pytest.mark.parametrize('last, kept', [(64, 64), (1024, 1024), (1025, -1)])
def test_a_gguf_file_s_window_beyond_a_row_s_is_the_whole_text(last, kept):
  found = gguf_folder._generation({'general.sampling.penalty_last_n': last})
  assert found['repeat_last_n'] == kept


def test_what_a_gguf_file_says_of_sampling_is_read_or_named(
  tmp_path, tokenizer
):
  said = {'temp': 0.5, 'top_k': 9, 'top_p': 0.75, 'min_p': 0.25}
  said |= {'penalty_repeat': 1.5, 'xtc_probability': 0.5, 'sequence': 'kt'}
  fields = {f'general.sampling.{name}': x for name, x in said.items()}
  fields['tokenizer.ggml.tokens'] = list('abcdef')
  for end, token in ('eos', 2), ('eot', 4), ('eom', 5), ('bos', 0):
    fields[f'tokenizer.ggml.{end}_token_id'] = token
  found = generation.read(
    _write(tmp_path, gguf_folder._generation(fields)), tokenizer
  )
  assert found.sampling == {
    'temperature': 0.5,
    'top_k': 9,
    'top_p': 0.75,
    'min_p': 0.25,
    'repetition_penalty': 1.5,
  }
  assert found.ends == (2, 4, 5)
  assert found.ignored == ("sequence='kt'", 'xtc_probability=0.5')


@pytest.mark.parametrize(
  'found, wanted',
  [
    ({'do_sample': False, 'top_k': -1}, {'top_k': 0, 'temperature': 0.0}),
    ({'do_sample': False, 'temperature': 0.7}, {'temperature': 0.0}),
    (PENALTIES, PENALTIES),
    ({'temperature': 1}, {'temperature': 1.0}),
    ({}, {}),
  ],
)
def test_no_sampling_is_the_likeliest_token(tmp_path, tokenizer, found, wanted):
  found = generation.read(_write(tmp_path, found), tokenizer)
  assert found.sampling == wanted


def test_without_the_file_the_model_s_config_names_the_end(tmp_path, tokenizer):
  assert generation.read(tmp_path, tokenizer) == generation.NONE
  (tmp_path / 'config.json').write_text('{"eos_token_id": 5}')
  assert generation.read(tmp_path, tokenizer).ends == (5,)
  _write(tmp_path, {'eos_token_id': 6})
  assert generation.read(tmp_path, tokenizer).ends == (6,)


@pytest.mark.parametrize(
  'found, message',
  [
    ({'temperature': 'hot'}, "temperature='hot': must be float"),
    ({'top_p': True}, 'top_p=True: must be float'),
    ({'top_k': 1.5}, 'top_k=1.5: must be int'),
    ({'do_sample': 1}, 'do_sample=1: must be true or false'),
    ({'eos_token_id': '2'}, "eos_token_id='2': must be a token"),
    ({'eos_token_id': [2, -1]}, r'eos_token_id=\[2, -1\]: must be a token'),
    ({'eos_token_id': True}, 'eos_token_id=True: must be a token'),
    ([], 'must be a JSON object'),
  ],
)
def test_a_wrong_setting_is_one_line(tmp_path, tokenizer, found, message):
  with pytest.raises(
    ValueError, match=rf'generation_config\.json: {message}'
  ) as caught:
    generation.read(_write(tmp_path, found), tokenizer)
  assert '\n' not in str(caught.value)
