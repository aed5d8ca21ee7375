"""Bits per byte are those of the rows that are read, whatever the tokenizer."""

import math

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import text as text_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.evaluation import held_out
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import state


@pytest.fixture
def words(tmp_path):
  """A tokenizer of one token a word."""
  import tokenizers

  vocabulary = {'<s>': 0, 'a': 1, 'sesquipedalian': 2}
  made = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(vocabulary, unk_token='a')
  )
  made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  made.save(str(tmp_path / 't.json'))
  return tokenizer_lib.load(str(tmp_path / 't.json'))


@pytest.fixture
def uniform():
  """A model that gives each of 8 tokens the same probability."""
  model = transformer.Transformer(
    model_config.ModelConfig(
      vocab_size=8,
      d_model=8,
      num_layers=1,
      period=0,
      num_heads=1,
      head_dim=8,
      d_ff=8,
      max_length=16,
      window=4,
      dtype='float32',
      quantization=quantization_config.none(),
    )
  )
  shapes = jax.eval_shape(lambda: state.init_params(model, 0))
  return model, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def test_bits_per_byte_of_some_rows_count_the_bytes_of_these(words, uniform):
  model, params = uniform
  texts = ' a' * 15, ' sesquipedalian' * 15
  documents = [
    documents_lib.Document(f'{n}', (text,)) for n, text in enumerate(texts)
  ]
  corpus = text_lib.corpus(documents, words, measured=True)
  # Rows of 16 hold a document each, BOS and 15 words of 2 or of 15 bytes; one
  # row is read, or both.
  got = [
    held_out.evaluator(model, corpus, 16, 1, rows)(params)['bits_per_byte']
    for rows in (1, 2)
  ]
  assert any(got[0] == pytest.approx(3 / size) for size in (2, 15))
  assert got[1] == pytest.approx(3 * 30 / (15 * 2 + 15 * 15))


def test_the_mix_is_its_sources_by_their_shares(words, uniform):
  model, _ = uniform
  params = state.init_params(model, 0)
  corpora = {
    name: text_lib.corpus(
      [documents_lib.Document('0', (text,))], words, measured=True
    )
    for name, text in (('a', ' a' * 30), ('s', ' sesquipedalian' * 30))
  }
  alone = held_out.evaluator(model, corpora['a'], 16, 1, 2)(params)
  evaluate = held_out.sources_evaluator(model, corpora, [0.25, 0.75], 16, 1, 2)
  found = evaluate(params)
  for reading in 'loss', 'bits_per_byte':
    assert found[f'{reading}/a'] == alone[reading]
  assert found['loss/a'] != found['loss/s']
  loss = 0.25 * found['loss/a'] + 0.75 * found['loss/s']
  assert found['loss'] == pytest.approx(loss)
  # A token has 2 bytes in one source, and 15 in the other.
  bits = loss / math.log(2) / (0.25 * 2 + 0.75 * 15)
  assert found['bits_per_byte'] == pytest.approx(bits)
  for reading in 'rms_lse', 'rms_mean_logit':
    assert found[reading] == alone[reading]


def test_a_byte_is_a_token_of_one_byte(uniform):
  model, params = uniform
  corpus = text_lib.corpus(
    [documents_lib.Document('a', ('\x01\x02\x03' * 20,))],
    tokenizer_lib.Bytes(),
    measured=True,
  )
  got = held_out.evaluator(model, corpus, 16, 2, 3)(params)
  assert got['bits_per_byte'] == got['loss'] / math.log(2)
  assert got['bits_per_byte'] == pytest.approx(3)
