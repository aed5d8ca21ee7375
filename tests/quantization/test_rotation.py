"""A rotated model computes the same in floats, and loses less in codes."""

import dataclasses

import jax
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange import plain
from kaiju_jax.interchange import shards
from kaiju_jax.interchange import stream
from kaiju_jax.model import lora
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import rotation
from tests.decoding import toys
from tests.interchange import family_folders as folders

LENGTH = 24
FAMILIES = (
  *('arcee', 'gemma3_text', 'llama', 'mistral', 'olmo2', 'olmo3'),
  *('qwen2', 'qwen3', 'smollm3'),
)


@pytest.mark.parametrize('size', [1, 2, 15, 30, 48, 576, 2560])
def test_the_matrix_is_orthogonal_and_mixes_all(size):
  held = rotation.parameters(size)
  turn_DD = rotation.turn(held, np.eye(size))
  np.testing.assert_allclose(turn_DD @ turn_DD.T, np.eye(size), atol=1e-6)
  assert (np.abs(turn_DD) > 1e-7).all()
  assert np.abs(turn_DD).max() < 2**0.5 * size**-0.5 + 1e-6
  back_DD = rotation.turn(held, np.eye(size), back=True)
  np.testing.assert_allclose(back_DD, turn_DD.T, atol=1e-7)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  """Several blocks to a tensor; a matrix that is mixed comes as a whole."""
  monkeypatch.setattr(shards, '_BLOCK', 210)


def make(tmp_path, name, outlier=1.0, **changes):
  """Writes a folder whose stream has a large channel; returns its path."""
  fields = folders.fields_of(name) | {'intermediate_size': 64} | changes
  tensors = folders.tensors_of(fields)
  for key, x in tensors.items():
    # What writes to the stream last.
    last = ('o_proj', 'down_proj') if name != 'olmo2' else ('post_',)
    if any(one in key for one in last):
      x[3] *= outlier
    if 'embed_tokens' in key:
      x[:, 3] *= outlier
    elif x.shape[-1] == 30 and x.ndim == 2 and 'lm_head' not in key:
      x[:, 3] /= outlier  # The layers hardly read it, as in trained models.
  return folders.write(tmp_path / 'in', fields, tensors)


def logits(params, config):
  rng = np.random.default_rng(5)
  tokens_BL = rng.integers(0, 90, (2, LENGTH), dtype=np.int32)
  seen = visibility.concatenate([visibility.causal(LENGTH)] * 2)
  model = transformer.Transformer(config)
  return np.asarray(
    jax.jit(lambda p: model.apply({'params': p}, tokens_BL, seen))(params)
  )


@pytest.mark.parametrize(
  'name, tied',
  [('llama', False), *((x, i % 2 == 0) for i, x in enumerate(FAMILIES))],
)
def test_floats_are_the_same(tmp_path, name, tied):
  folder = make(tmp_path, name, tie_word_embeddings=tied)
  want = logits(*hugging_face.read(folder))
  params, config = hugging_face.read(folder, (), stream.DEPLOYED, rotated=True)
  assert rotation.NAME in params
  got = logits(params, config)
  np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())
  mixed = rotation.MIX in params['blocks']['layer_0']['feedforward']
  assert mixed == (name != 'arcee')


@pytest.mark.parametrize('name', ['arcee', 'qwen2', 'gemma3_text'])
def test_a_rotated_model_with_adapters_merges_and_turns_back(tmp_path, name):
  folder = make(tmp_path, name)
  params, config = hugging_face.read(folder, (), stream.DEPLOYED, rotated=True)
  before = logits(params, config)
  params = lora.attach(params, 3, 6.0)
  rng = np.random.default_rng(7)
  params = jax.tree_util.tree_map_with_path(
    lambda path, x: (
      0.1 * rng.standard_normal(x.shape, np.float32)
      if path[-1].key.startswith('lora_up')
      else x
    ),
    params,
  )
  want = logits(params, config)
  assert np.abs(want - before).max() > 0.1 * np.abs(want).max()
  merged = plain.weights(lora.merge(params, config), config)
  got = logits(plain.params(merged, config), config)
  np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


def test_hidden_activations_of_another_number_are_not_mixed(tmp_path):
  folder = make(tmp_path, 'llama', intermediate_size=40)
  want = logits(*hugging_face.read(folder))
  params, config = hugging_face.read(folder, (), stream.DEPLOYED, rotated=True)
  assert rotation.MIX not in params['blocks']['layer_0']['feedforward']
  got = logits(params, config)
  np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize('name', ['llama', 'olmo2'])
def test_codes_lose_less_where_a_channel_is_large(tmp_path, name):
  folder = make(tmp_path, name, outlier=40.0)
  want = logits(*hugging_face.read(folder))
  arm = dataclasses.replace(quantization_config.for_serving(), kv='none')
  plain, turned = (
    logits(*hugging_face.read(folder, (), stream.DEPLOYED, arm, rotated=one))
    for one in (False, True)
  )
  error, less = (np.abs(x - want).mean() for x in (plain, turned))
  assert less < 0.5 * error


def test_calls_of_a_cache_have_the_bits_of_one_pass(tmp_path):
  folder = make(tmp_path, 'llama', outlier=40.0)
  arm = quantization_config.for_serving()
  params, config = hugging_face.read(
    folder, (), stream.DEPLOYED, arm, rotated=True
  )
  rng = np.random.default_rng(5)
  tokens_BL = rng.integers(0, 90, (2, LENGTH), dtype=np.int32)
  decoder = decoder_lib.Decoder(
    params, config, rows=2, length=LENGTH, page=8, mode='reference'
  )
  rows, hidden, at = [decoder.open(), decoder.open()], [], 0
  for count in 7, 1, 8, 8:  # All in the program of eight.
    call_BL = np.zeros((2, 8), np.int32)
    call_BL[:, :count] = tokens_BL[:, at : at + count]
    found = decoder.extend_text(rows, call_BL, [count] * 2)
    hidden.append(found[:, :count])
    at += count
  got = decoder.logits(np.concatenate(hidden, axis=1))
  want = toys.forward(params, config, tokens_BL, mode='reference')
  np.testing.assert_array_equal(got, want)
