"""Text in calls has the bits of its forward pass, whatever the model is.

Each seed draws a model, a cache and a way to cut rows of text into calls. Every
logit is compared. A few seeds run in the quick suite and a few more are `slow`.
Any number runs by hand:

    REFERENCE_SEEDS=100:400 python -m pytest -k by_hand \\
      tests/decoding/device/test_reference.py
"""

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import reference
from kaiju_jax.model import config as model_config
from kaiju_jax.model import rope_scaling
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from tests.decoding import toys


def layout(rng) -> str:
  """Draws up to three layers, each with its own keys or an earlier layer's."""
  words = []
  for index in range(rng.integers(1, 4)):
    kind = rng.choice(['L', 'G'])
    owners = [i for i, word in enumerate(words) if word == f'{kind}{i}']
    words.append(f'{kind}{rng.choice([index, *owners])}')
  return ' '.join(words)


def model(rng) -> model_config.ModelConfig:
  """Draws a small model: any sizes, everything int8 or not."""

  def one_of(*choices):
    return choices[rng.integers(len(choices))]

  kv = one_of('int8', 'none')
  return model_config.ModelConfig(
    vocab_size=int(rng.integers(2, 70)),
    d_model=int(rng.integers(1, 40)),
    layout=layout(rng),
    window=int(rng.integers(1, 26)),
    num_heads=int(rng.integers(1, 5)),
    head_dim=2 * int(rng.integers(1, 10)),
    d_ff=int(rng.integers(1, 70)),
    max_length=144,
    rope_local=one_of(0.0, 100.0, 10_000.0),
    rope_global=one_of(0.0, 100.0, 10_000.0),
    tied_embedding=one_of(True, False),
    dtype=one_of('float32', 'bfloat16'),
    remat=one_of('none', 'layer'),
    attention=one_of('', 'reference', 'chunked'),
    quantization=quantization_config.QuantizationConfig(
      matmul=one_of('int8', 'none'),
      matmul_implementation=one_of('', '', 'reference', 'xla'),
      kv=kv,
      kv_scale=one_of('token', 'channel'),
      qk=one_of('int8', 'none') if kv == 'int8' else 'none',
      clamp_hidden=one_of('weight_rms', 'input_std', 'none'),
      clamp_input=one_of('input_std', 'none'),
      # Small enough that the clamps cut.
      clamp_hidden_k=one_of(24.0, 1.0),
      clamp_input_k=one_of(8.0, 1.0),
      bungee=one_of(True, False),
      embedding=one_of('int8', 'none'),
      wire_weights=one_of('int8', 'float'),
    ),
  )


def of_a_family(config, rng) -> model_config.ModelConfig:
  """Returns the model with parts that other libraries' models have."""

  def one_of(*choices):
    return choices[rng.integers(len(choices))]

  layout = config.layout
  if not layout.startswith('L') and rng.random() < 0.7:
    # Layers without rotation that share no keys with rotated ones.
    layout = layout.replace('G', 'N')
  heads = one_of(1, 1, 2)
  quantization = config.quantization
  if quantization.clamp_hidden == 'weight_rms':
    quantization = dataclasses.replace(quantization, clamp_hidden='none')
  if heads > 1 and quantization.kv == 'int8':
    quantization = dataclasses.replace(quantization, kv_scale='token')
  kind = one_of('none', 'linear', 'llama3', 'yarn')
  return dataclasses.replace(
    config,
    layout=layout,
    num_heads=heads * config.num_heads,
    num_kv_heads=heads,
    feedforward=one_of('swiglu', 'geglu', 'relu2'),
    norms=one_of('before', 'both', 'after'),
    qk_norm=one_of('none', 'head', 'all'),
    qkv_bias=one_of(False, True),
    scaled_embedding=one_of(False, True),
    rope_scaling=rope_scaling.RopeScalingConfig(
      kind,
      factor=4.0,
      original_length=16,
      attention_factor=1.1 if kind == 'yarn' else 1.0,
      layers=one_of('all', 'global'),
      angles=one_of('float32', 'float64'),
    ),
    quantization=quantization,
  )


def parameters(config: model_config.ModelConfig, rng):
  """Draws every parameter, without a compiled `init`; limits are positive."""

  def drawn(path, shape):
    name = path[-1].key
    x = rng.normal(size=shape.shape).astype(np.float32)
    if 'gain' in name or name.startswith(('k_limit', 'v_limit')):
      return np.exp(0.3 * x)
    return x * np.float32(config.d_model**-0.5)

  return jax.tree_util.tree_map_with_path(
    drawn, transformer.parameter_shapes(config)
  )


def differences(seed: int, is_family: bool = False) -> str:
  """Returns what differs between text in calls and its forward pass, or ''."""
  rng = np.random.default_rng(seed)
  config = model(rng)
  if is_family:
    config = of_a_family(config, np.random.default_rng(seed))
  length = int(rng.integers(2, 25))
  page, rows = int(rng.integers(1, 9)), int(rng.integers(1, 4))
  if rng.random() < 0.2:  # Several blocks of the blockwise attention.
    length *= 6
  params = parameters(config, rng)
  tokens_BL = rng.integers(0, config.vocab_size, (rows, length), dtype=np.int32)
  want_BLV = toys.forward(params, config, tokens_BL, 'reference')

  decoder = decoder_lib.Decoder(
    params, config, rows=rows + 1, length=length, page=page, mode='reference'
  )
  opened = [decoder.open() for _ in range(rows + 1)]
  decoder.close(opened.pop(rng.integers(rows + 1)))
  rng.shuffle(opened)
  # Calls of one shape, of which rows take different parts.
  width = int(rng.integers(1 + length // 25, length + 1))
  hidden_BLD = np.zeros((rows, length, config.d_model), np.float32)
  at_B = np.zeros(rows, np.int64)
  while (at_B < length).any():
    count_B = rng.integers(0, width + 1, rows)
    count_B = np.minimum(count_B, length - at_B)
    call_BL = rng.integers(0, config.vocab_size, (rows, width), dtype=np.int32)
    for b, (at, count) in enumerate(zip(at_B, count_B)):
      call_BL[b, :count] = tokens_BL[b, at : at + count]
    made_BLD = np.asarray(decoder.extend_text(opened, call_BL, count_B))
    for b, (at, count) in enumerate(zip(at_B, count_B)):
      hidden_BLD[b, at : at + count] = made_BLD[b, :count]
    at_B += count_B
  got_BLV = np.asarray(decoder.logits(hidden_BLD.astype(config.dtype)))
  is_other_BLV = got_BLV != want_BLV
  if not is_other_BLV.any():
    return ''
  return (
    f'{is_other_BLV.any(-1).sum()} of {rows}×{length} tokens, first at'
    f' {[np.flatnonzero(row)[:1].tolist() for row in is_other_BLV.any(-1)]},'
    f' by up to {np.abs(got_BLV - want_BLV).max():.2g}'
    f' of {np.abs(want_BLV).max():.2g}: calls of {width}, page={page}, {config}'
  )


def _everywhere(x_LD, w_DF):
  """A product by itself, in a loop, a branch, a checkpoint, a custom_vjp."""

  def product(x_LD):
    return jnp.einsum('LD,DF->LF', x_LD, w_DF)

  @jax.custom_vjp
  def custom(x_LD):
    return product(x_LD)

  custom.defvjp(lambda x_LD: (custom(x_LD), None), lambda _, dy_LF: dy_LF)
  return (
    product(x_LD),
    jax.lax.scan(
      lambda y, _: (y + product(x_LD), None),
      0 * product(x_LD),
      length=2,
      xs=None,
    )[0],
    jax.lax.cond(x_LD[0, 0] > 9, lambda x_LD: 2 * product(x_LD), product, x_LD),
    jax.checkpoint(product)(x_LD),
    custom(x_LD),
    jnp.mean(jnp.square(x_LD), axis=-1),
  )


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_a_row_s_products_do_not_depend_on_how_many_rows_there_are(dtype):
  rng = np.random.default_rng(0)
  x_LD = jnp.asarray(rng.normal(size=(24, 33)), dtype)
  w_DF = jnp.asarray(rng.normal(size=(33, 17)), dtype)
  jitted = reference.jit(_everywhere)
  want = jitted(x_LD, w_DF)
  product = np.asarray(x_LD, np.float64) @ np.asarray(w_DF, np.float64)
  np.testing.assert_allclose(
    np.asarray(want[0], np.float64), product, rtol=1e-2, atol=5e-2
  )
  # A processor's matrix library takes rows by fours, sixes or eights.
  for rows in 1, 2, 7, 13:
    for got, whole in zip(jitted(x_LD[:rows], w_DF), want, strict=True):
      np.testing.assert_array_equal(got, whole[:rows])


def test_a_large_product_is_summed_in_blocks_of_rows(monkeypatch):
  rng = np.random.default_rng(0)
  x_LD = rng.integers(-9, 9, (7, 5)).astype(np.float32)
  w_DF = rng.integers(-9, 9, (5, 3)).astype(np.float32)
  want = reference.jit(jnp.dot)(x_LD, w_DF)
  monkeypatch.setattr(reference, '_PRODUCTS', 2 * 5 * 3)
  got = reference.jit(lambda x_LD, w_DF: jnp.dot(x_LD, w_DF))(x_LD, w_DF)
  np.testing.assert_array_equal(got, want)
  np.testing.assert_array_equal(got, x_LD @ w_DF)


# Together these have nearly every choice of `model`, several rows, windows that
# are shorter than the row, pages of one slot, clamps that cut, and two settings
# that once differed: an int8 embedding among float weights (54), and codes made
# from bfloat16 behind the wire (45). Sums in another order differ in 10. The
# slow ones are compiled as users compile: their bits must agree as well.
@pytest.mark.parametrize('seed', (10, 54))
def test_any_model_s_text_in_calls_has_the_forward_pass_s_bits(seed):
  assert not differences(seed)


# 210 has gelu, norms on both sides and over all heads, biases, int8 keys beside
# float matmuls; 238 silu, norms behind each part, scaled angles.
@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize('seed', (205, 209, 210, 211, 216, 232, 234, 238))
def test_models_of_other_libraries_have_the_forward_pass_s_bits(seed):
  assert not differences(seed, is_family=True)


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize('seed', (1, 45, 51, 105))
def test_more_models_have_the_forward_pass_s_bits(seed):
  assert not differences(seed)


def _by_hand():
  first, _, end = os.environ.get('REFERENCE_SEEDS', '0:0').partition(':')
  return range(int(first), int(end))


@pytest.mark.slow
@pytest.mark.parametrize('seed', _by_hand())
def test_models_by_hand_have_the_forward_pass_s_bits(seed):
  assert not differences(seed)
