"""Bits per byte are those of the rows that are read, whatever the tokenizer."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import packing
from kaiju_jax.data import text as text_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.evaluation import held_out
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import state
from tests.model import params as params_lib


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


def read(model, corpus, batch, rows):
  return held_out.evaluator(model, {'': corpus}, [1.0], 16, batch, rows)


def test_bits_per_byte_of_known_models():
  # A uniform model over 256 bytes needs 8 bits for each.
  assert held_out.bits_per_byte(math.log(256), 1) == pytest.approx(8)
  # One over 2¹⁶ tokens of four bytes each needs 16 bits for four bytes.
  assert held_out.bits_per_byte(math.log(2**16), 4) == pytest.approx(4)


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
    read(model, corpus, 1, rows)(params)['bits_per_byte'] for rows in (1, 2)
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
  alone = read(model, corpora['a'], 1, 2)(params)
  evaluate = held_out.evaluator(model, corpora, [0.25, 0.75], 16, 1, 2)
  found = evaluate(params)
  for reading in 'loss', 'bits_per_byte':
    assert found[f'{reading}/a'] == alone[reading]
  assert found['loss/a'] != found['loss/s']
  loss = 0.25 * found['loss/a'] + 0.75 * found['loss/s']
  assert found['loss'] == pytest.approx(loss)
  # A token has 2 bytes in one source, and 15 in the other.
  bits = loss / math.log(2) / (0.25 * 2 + 0.75 * 15)
  assert found['bits_per_byte'] == pytest.approx(bits)
  other = read(model, corpora['s'], 1, 2)(params)
  for reading in 'rms_lse', 'rms_mean_logit':
    square = 0.25 * alone[reading] ** 2 + 0.75 * other[reading] ** 2
    assert found[reading] ** 2 == pytest.approx(square)


@pytest.mark.parametrize('kv_heads', [1, 2])
def test_sizes_of_logits_do_not_depend_on_the_batch(words, uniform, kv_heads):
  """They are means over every token that carries loss, and over no other."""
  changes = {'num_layers': 2, 'num_heads': 4, 'num_kv_heads': kv_heads}
  model = uniform[0].clone(
    config=dataclasses.replace(uniform[0].config, **changes)
  )
  params = params_lib.drawn(model)
  texts = [' a' * 15, ' sesquipedalian' * 9, ' a sesquipedalian' * 5]
  corpus = text_lib.corpus(
    [documents_lib.Document(x, (x,)) for x in texts], words, measured=True
  )
  rows = text_lib.Rows(corpus, 16, seed=0)
  squares, weights = [], []
  for n in range(3):
    batch = packing.stack([rows[n]])
    _, left = model.apply(
      {'params': params},
      batch.tokens_BL,
      batch.visibility(),
      mutable=['readings'],
    )
    leaves = jax.tree_util.tree_leaves_with_path(left)
    squares.append(
      np.mean([x.reshape(-1, 16) for k, x in leaves if 'lse' in str(k)], (0, 1))
    )
    weights.append(batch.weight_BL[0])
  wanted = math.sqrt(np.average(squares, weights=weights))
  for size in 1, 2, 3, 5:
    found = read(model, corpus, size, 3)(params)
    assert found['rms_lse'] == pytest.approx(wanted, rel=1e-5), size
    assert found['rms_mean_logit'] > 0


def test_a_byte_is_a_token_of_one_byte(uniform):
  model, params = uniform
  corpus = text_lib.corpus(
    [documents_lib.Document('a', ('\x01\x02\x03' * 20,))],
    tokenizer_lib.Bytes(),
    measured=True,
  )
  got = read(model, corpus, 2, 3)(params)
  assert got['bits_per_byte'] == got['loss'] / math.log(2)
  assert got['bits_per_byte'] == pytest.approx(3)
