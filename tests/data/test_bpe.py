"""A tokenizer trained here encodes every text, and some of it in few tokens."""

import pytest

from kaiju_jax.data import bpe
from kaiju_jax.data import tokenizer as tokenizer_lib


def test_words_that_come_often_become_tokens(tmp_path):
  path = tmp_path / 'made' / 'tokenizer.json'
  bpe.train(path, ['the cat sat on the mat, ' * 20], 300)
  tokenizer = tokenizer_lib.load(str(path), 300)
  assert len(tokenizer.encode('the cat sat on the mat')) <= 8
  for text in ('the dog', 'naïve \x00 \U0001f409\n', ''):
    assert tokenizer.decode(tokenizer.encode(text)) == text
  assert tokenizer.bos_id not in tokenizer.encode('<s>')
  assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_the_same_text_makes_the_same_file(tmp_path):
  for name in 'ab':
    bpe.train(tmp_path / name, ['to be or not to be'], 280)
  assert (tmp_path / 'a').read_bytes() == (tmp_path / 'b').read_bytes()


def test_a_vocabulary_without_all_bytes_is_refused(tmp_path):
  with pytest.raises(ValueError, match='vocab_size=256: must be at least 257'):
    bpe.train(tmp_path / 'x.json', ['abc'], 256)
