"""The exported tokenizer gives the tokens that training saw, after BOS."""

import json

import numpy as np
import pytest
import tokenizers

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.interchange import tokens
from tests.interchange import toys

TEXTS = ['', 'plain', 'häß <s> Ā \x01\x7f\xad\xa0\n\t  日本 🦖', '<s>']


def test_bytes_come_back_byte_by_byte(tmp_path):
  assert tokens.write(tmp_path, '', toys.PLAIN) == 0
  found = tokenizers.Tokenizer.from_file(str(tmp_path / 'tokenizer.json'))
  found.encode_special_tokens = True  # split_special_tokens
  settings = json.loads((tmp_path / 'tokenizer_config.json').read_text())
  assert settings['split_special_tokens'] and settings['bos_token'] == '<s>'
  every = ''.join(map(chr, range(1, 0x800)))
  for text in [*TEXTS, every]:
    ids = found.encode(text).ids
    assert ids == [0, *text.encode()]
    assert found.decode(ids) == text
  # And our own reader takes it for the same tokenizer.
  again = tokenizer_lib.load(str(tmp_path / 'tokenizer.json'), 256)
  ours = tokenizer_lib.Bytes()
  assert (again.bos_id, again.vocab_size) == (ours.bos_id, ours.vocab_size)
  for text in TEXTS:
    np.testing.assert_array_equal(again.encode(text), ours.encode(text))


def words(path, post_processor=None):
  vocabulary = {'[UNK]': 0, '<s>': 1, '</s>': 2, 'a': 3, 'b': 4}
  made = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(vocabulary, unk_token='[UNK]')
  )
  made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  made.add_special_tokens(['<s>', '</s>'])
  made.enable_truncation(2)
  made.enable_padding(length=9)
  if post_processor:
    made.post_processor = tokenizers.processors.TemplateProcessing(
      single=post_processor, special_tokens=[('<s>', 1), ('</s>', 2)]
    )
  made.save(str(path))
  return str(path)


@pytest.mark.parametrize('before', [None, '<s> $A', '<s> $A </s>'])
def test_bos_opens_a_text_and_nothing_ends_it(tmp_path, before):
  path = words(tmp_path / 'given.json', before)
  assert tokens.write(tmp_path, path, toys.PLAIN) == 1
  found = tokenizers.Tokenizer.from_file(str(tmp_path / 'tokenizer.json'))
  assert found.encode('a b a b').ids == [1, 3, 4, 3, 4]
  settings = json.loads((tmp_path / 'tokenizer_config.json').read_text())
  assert settings['bos_token'] == '<s>'
  assert settings['model_max_length'] == 64
