"""Bytes and a Hugging Face tokenizer.json behind one small protocol."""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest

from kaiju_jax.data import tokenizer as tokenizer_lib

TEXT = 'Wet paint. Émile écrit “naïve” — 猫が好き 🐈\r\n\tdone'


def _bpe(path, special=(), template=None):
  """Trains a tiny byte-level BPE and saves it."""
  import tokenizers
  from tokenizers import decoders
  from tokenizers import pre_tokenizers
  from tokenizers import processors
  from tokenizers import trainers

  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=300,
    special_tokens=list(special),
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator(['the cat sat on the mat ' * 20], trainer)
  if template:
    tokenizer.post_processor = processors.TemplateProcessing(
      single=f'{template} $A',
      special_tokens=[(template, tokenizer.token_to_id(template))],
    )
  tokenizer.enable_truncation(4)
  tokenizer.enable_padding(length=9)
  tokenizer.save(str(path))
  return str(path)


def test_bytes():
  tokenizer = tokenizer_lib.load('')
  tokens = tokenizer.encode('aé')
  assert tokens.tolist() == [97, 0xC3, 0xA9]
  assert tokens.dtype == np.int32
  assert tokenizer.encode('').tolist() == []
  assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
  assert tokenizer.decode([tokenizer.bos_id, 97, 0xC3]) == 'a\ufffd'
  assert (tokenizer.vocab_size, tokenizer.bos_id) == (256, 0)


def test_no_token_stands_for_more_bytes_than_the_longest(tmp_path):
  pytest.importorskip('tokenizers')
  path = _bpe(tmp_path / 'tokenizer.json', ['<unk>', '<s>'])
  for tokenizer in tokenizer_lib.load(path), tokenizer_lib.load(''):
    for text in TEXT, '\ufffd' * 9, 'the cat sat on the mat' * 9, ' ' * 99:
      assert tokenizer.measure(text).max() <= tokenizer.longest
      read = tokenizer.decode(tokenizer.encode(text)[1::2])
      assert len(read.encode()) <= tokenizer.longest * len(text.encode()) / 2
    tokens = range(tokenizer.vocab_size)
    read = [len(tokenizer.decode([token]).encode()) for token in tokens]
    assert max(read) <= tokenizer.longest


def test_other_threads_run_while_a_text_is_encoded(tmp_path):
  pytest.importorskip('tokenizers')
  tokenizer = tokenizer_lib.load(_bpe(tmp_path / 'tokenizer.json', ['<s>']))
  text = 'the cat sat on the mat ' * 20_000
  counted, has_ended = [0], threading.Event()

  def count():
    while not has_ended.wait(0.001):
      counted[0] += 1

  thread = threading.Thread(target=count)
  thread.start()
  try:
    before = counted[0]
    encoding = tokenizer.encode(text)
    after = counted[0]
  finally:
    has_ended.set()
    thread.join()
  # It takes some 100 ms, in which a held lock lets nobody count.
  assert len(encoding) > 100_000 and after - before > 5


def test_hugging_face(tmp_path):
  pytest.importorskip('tokenizers')
  path = _bpe(tmp_path / 'tokenizer.json', ['<unk>', '<s>'])
  tokenizer = tokenizer_lib.load(path)
  tokens = tokenizer.encode(TEXT)
  assert tokens.dtype == np.int32
  assert tokenizer.decode(tokens) == TEXT
  assert len(tokenizer.encode('the cat')) < len('the cat')
  saved = json.loads((tmp_path / 'tokenizer.json').read_text())
  vocabulary = saved['model']['vocab']
  assert tokenizer.vocab_size == 1 + max(vocabulary.values())
  assert tokenizer.bos_id == vocabulary['<s>']


def test_the_bytes_of_tokens_are_those_of_the_text(tmp_path):
  tokenizer = tokenizer_lib.load(_bpe(tmp_path / 't.json', ['<s>']))
  for text in (TEXT, ' the cat\n\n', 'é', ''):
    for one in (tokenizer, tokenizer_lib.Bytes()):
      measured = one.measure(text)
      assert measured.shape == one.encode(text).shape
      assert measured.sum() == len(text.encode())
  # ' cat' is one token of four bytes, and é two that share a character.
  assert tokenizer.measure('the cat').tolist() == [3, 4]
  assert tokenizer.measure('é').tolist() == [2, 0]


def test_hugging_face_neither_truncates_nor_pads(tmp_path):
  tokenizer = tokenizer_lib.load(_bpe(tmp_path / 't.json', ['<s>']))
  assert len(tokenizer.encode('the cat sat on the mat' * 20)) > 20
  assert len(tokenizer.encode('t')) == 1


def test_the_template_names_the_token_that_opens_a_document(tmp_path):
  path = _bpe(tmp_path / 't.json', ['<s>', '<start>'], template='<start>')
  assert tokenizer_lib.load(path).bos_id == 1
  assert 1 not in tokenizer_lib.load(path).encode('the cat')


def test_a_token_has_the_name_by_which_it_is_found(tmp_path):
  path = _bpe(tmp_path / 't.json', ['<s>', '<start>'])
  for tokenizer in tokenizer_lib.load(path), tokenizer_lib.Bytes():
    name = tokenizer.name(tokenizer.bos_id)
    assert tokenizer.special(name) == tokenizer.bos_id
    assert tokenizer.special('no name') is None


def test_text_that_spells_a_special_token_is_text(tmp_path):
  tokenizer = tokenizer_lib.load(_bpe(tmp_path / 't.json', ['<s>']))
  tokens = tokenizer.encode('a<s>b')
  assert tokenizer.bos_id not in tokens
  assert tokenizer.decode(tokens) == 'a<s>b'


def test_without_a_token_to_open_documents(tmp_path):
  with pytest.raises(ValueError, match='nothing to open a document'):
    tokenizer_lib.load(_bpe(tmp_path / 't.json', ['<unk>']))


def test_vocabulary_larger_than_the_model(tmp_path):
  path = _bpe(tmp_path / 't.json', ['<s>'])
  size = tokenizer_lib.load(path).vocab_size
  assert size > 256
  tokenizer_lib.load(path, vocab_size=size)
  message = f'model.vocab_size={size - 1}: must be at least {size}.*t.json'
  with pytest.raises(ValueError, match=message):
    tokenizer_lib.load(path, vocab_size=size - 1)
  with pytest.raises(ValueError, match='must be at least 256'):
    tokenizer_lib.load('', vocab_size=255)


def test_not_a_tokenizer(tmp_path):
  with pytest.raises(
    FileNotFoundError, match=r'data\.tokenizer=.*no such file'
  ):
    tokenizer_lib.load(str(tmp_path / 'none.json'))
  with pytest.raises(ValueError, match=r"data\.tokenizer='gs:.*an address"):
    tokenizer_lib.load('gs://bucket/tokenizer.json')
  (tmp_path / 'bad.json').write_text('{"model": 3}')
  with pytest.raises(ValueError, match=r'bad.json.*not a Hugging Face'):
    tokenizer_lib.load(str(tmp_path / 'bad.json'))


def test_the_library_is_imported_only_for_a_file():
  code = (
    'import sys; from kaiju_jax.data import tokenizer, documents, text;'
    'tokenizer.load("");'
    'sys.exit(str({"tokenizers", "jax", "grain"} & set(sys.modules)))'
  )
  result = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True
  )
  assert result.stderr.strip() == 'set()'


def test_a_file_is_hashed_without_decoding_its_tokens(tmp_path, monkeypatch):
  path = _bpe(tmp_path / 'a.json', ['<s>'])
  tokenizer = tokenizer_lib.load(path)
  moved = tmp_path / 'b.json'
  moved.write_bytes((tmp_path / 'a.json').read_bytes())
  with monkeypatch.context() as patch:
    patch.setattr(tokenizer_lib.HuggingFace, 'decode', None)
    digest = tokenizer_lib.digest(tokenizer)
    assert tokenizer_lib.digest(tokenizer_lib.load(str(moved))) == digest
  moved.write_bytes(moved.read_bytes() + b' ')
  other = tokenizer_lib.load(str(moved))
  assert tokenizer_lib.digest(other) != digest
  assert tokenizer_lib.hash_use(other) == tokenizer_lib.hash_use(tokenizer)
  assert tokenizer_lib.digest(tokenizer_lib.load('')) == tokenizer_lib.hash_use(
    tokenizer_lib.Bytes()
  )
