"""What comes with a model: its chat format and its settings of sampling."""

import json

import numpy as np
import pytest

from kaiju_jax.app import talk
from kaiju_jax.data import chat as chat_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.interchange import generation
from kaiju_jax.interchange import hugging_face
from kaiju_jax.runs import defaults
from kaiju_jax.runs import load
from tests.interchange import toys
from tests.interchange.templates import shapes
from tests.runs import toys as folders


@pytest.fixture
def folder(tmp_path):
  return folders.write_folder(tmp_path / 'folder')


def read(path, template=''):
  loaded = load.from_anywhere(path)
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  return defaults.read(loaded, tokenizer, template), tokenizer


def test_a_stranger_s_model_without_a_template_does_not_chat(folder):
  # Its tokenizer has ChatML's tokens, which say nothing of its training.
  found, _ = read(folder)
  assert found.format is None
  assert found.chat_sampling == defaults.CHATS
  assert found.generation.ends == (1, 2)  # config.json's.
  template = folder.parent / 'template.jinja'
  template.write_text(shapes.TEMPLATES['chatml'])
  found, tokenizer = read(folder, template)
  assert found.format.name == 'template'
  assert {1, 2, tokenizer.special('<|im_end|>')} <= {*found.format.stop_tokens}


def test_our_own_folder_keeps_our_own_format(tmp_path):
  path = tmp_path / 'out'
  hugging_face.write(path, toys.params_of(toys.PLAIN), toys.PLAIN)
  found, _ = read(path)
  assert found.format.name == 'control'
  assert found.generation == generation.NONE and not found.chat_sampling
  with pytest.raises(ValueError, match='only a Hugging Face folder'):
    defaults.read(load.from_anywhere(path)._replace(chats=''), None, 'a.jinja')


@pytest.mark.parametrize(
  'settings, message',
  [
    ({'temperature': -1}, r'temperature=-1.*: must be'),
    ({'top_p': 1.5}, 'top_p=1.5: must be above 0 and at most 1'),
    ({'eos_token_id': 420}, r'eos_token_id=420: must be a token .* 0…419'),
  ],
)
def test_settings_that_no_request_could_have_are_refused(
  folder, settings, message
):
  (folder / generation.FILE).write_text(json.dumps(settings))
  with pytest.raises(ValueError, match=message) as caught:
    read(folder)
  assert '\n' not in str(caught.value)


def test_settings_are_told(folder):
  settings = {'temperature': 0.6, 'top_k': 20, 'typical_p': 0.5}
  settings |= {'dry_sequence_breakers': [':', '\n']}
  (folder / generation.FILE).write_text(json.dumps(settings))
  found, _ = read(folder)
  assert found.notes() == [
    "Sampling: temperature 0.6, dry_sequence_breakers [':', '\\n'], top_k 20.",
    'generation_config.json: ignored: typical_p=0.5.',
  ]


def test_lines_of_a_chat_are_the_prompt_of_the_whole_chat(folder):
  template = folder.parent / 'template.jinja'
  template.write_text(shapes.TEMPLATES['chatml'])
  found, tokenizer = read(folder, template)
  for format in found.format, chat_lib.format_of(tokenizer):
    chat, before_L = [], np.empty(0, np.int32)
    for line, reply in ('Hello', 'tea'), ('two', 'rain'), ('the', ''):
      added_L = talk.write_message(format, line, before_L)
      chat.append(('user', line))
      before_L = np.concatenate([before_L, added_L])
      np.testing.assert_array_equal(before_L, format.prompt(chat))
      drawn_L = tokenizer.encode(reply)
      if reply == 'tea':  # The other is cut at its length.
        drawn_L = np.append(drawn_L, format.stop_tokens[0])
      before_L = np.concatenate([before_L, drawn_L])
      chat.append(('assistant', reply))
