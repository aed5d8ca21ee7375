"""int8 projections against float64, and what the compiler makes of them."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.kernels.int8_matmul import blocks
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import bungee
from kaiju_jax.quantization import clamp
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import qat
from kaiju_jax.quantization.qat import letters as letters_lib
from kaiju_jax.quantization.qat import product
from kaiju_jax.training import state
from tests.model import rows

SPECS = {
  'BLD,DHK->BLHK': ((2, 5, 16), (16, 3, 8)),
  'BLD,DF->BLF': ((2, 5, 16), (16, 24)),
  'BLF,DF->BLD': ((2, 5, 24), (16, 24)),
  'BLHK,DHK->BLD': ((2, 5, 3, 8), (16, 3, 8)),
}


def axes_of(letters, spec):
  x, w = spec.split('->')[0].split(',')
  return tuple(i for i, c in enumerate(letters) if c in x and c in w)


def drawn(spec, nonnegative=False, seed=0):
  rng = np.random.default_rng(seed)
  x_shape, w_shape = SPECS[spec]
  x = rng.standard_normal(x_shape).astype(np.float32)
  w = rng.standard_normal(w_shape).astype(np.float32)
  return (np.abs(x) if nonnegative else x), w


def fake_quant(x, axes, levels=127, limit=None):
  """Rounds in float64, as a reader of the docstring would."""
  x = x.astype(np.float64)
  limit = np.abs(x).max(axes, keepdims=True) if limit is None else limit
  step = np.float64(np.float32(limit) / np.float32(levels))
  return np.clip(np.round(x / step), -levels, levels) * step


@pytest.mark.parametrize('spec', SPECS)
@pytest.mark.parametrize('nonnegative', [False, True])
def test_a_projection_and_its_gradients_are_those_of_rounded_operands(
  spec, nonnegative
):
  """In float64; gradients go straight through the rounding."""
  x, w = drawn(spec, nonnegative)
  x_letters, w_letters = spec.split('->')[0].split(',')
  out = spec.split('->')[1]
  w_axes = axes_of(w_letters, spec)
  rng = np.random.default_rng(1)
  dy = rng.standard_normal(np.einsum(spec, x, w).shape).astype(np.float32)

  @jax.jit
  def run(x, w):
    def project(x, w):
      used = qat.quantize(w, w_axes, jnp.float32)
      return qat.einsum(spec, x, used, nonnegative=nonnegative)

    y, pull = jax.vjp(project, x, w)
    return y, *pull(dy)

  y, dx, dw = run(x, w)
  levels = 255 if nonnegative else 127
  x_hat = fake_quant(x, axes_of(x_letters, spec), levels)
  w_hat = fake_quant(w, w_axes)
  want = np.einsum(spec, x_hat, w_hat)
  want_dx = np.einsum(f'{out},{w_letters}->{x_letters}', dy, w_hat)
  want_dw = np.einsum(f'{x_letters},{out}->{w_letters}', x_hat, dy)
  np.testing.assert_allclose(y, want, rtol=2e-6, atol=2e-6)
  np.testing.assert_allclose(dx, want_dx, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(dw, want_dw, rtol=1e-5, atol=1e-5)


def test_the_int8_input_gradient_is_unbiased_and_near():
  x, w = drawn('BLD,DF->BLF')
  dy = np.random.default_rng(2).standard_normal((2, 5, 24)).astype(np.float32)
  # The same gradient, changed by up to 0.0025 %, draws 100 other roundings.
  many = dy[None] * (1 + 2.5e-7 * np.arange(100)[:, None, None, None])

  @functools.partial(jax.jit, static_argnums=0)
  def dx_of(kind, dy):
    def project(x):
      used = qat.quantize(w, (0,), jnp.float32)
      return qat.einsum('BLD,DF->BLF', x, used, input_gradient=kind)

    return jax.vjp(project, x)[1](dy)[0]

  exact = dx_of('bf16', dy)
  rounded = np.stack([dx_of('int8', one) for one in many.astype(np.float32)])
  one = np.linalg.norm(rounded[0] - exact) / np.linalg.norm(exact)
  mean = np.linalg.norm(rounded.mean(0) - exact) / np.linalg.norm(exact)
  assert 1e-4 < one < 0.03
  assert mean < one / 5


def test_equal_gradients_at_different_places_round_differently():
  # 7.5 codes in each of 2,000 columns beside one that sets the scale.
  dy = np.full((1, 2000, 24), 7.5 / 127, np.float32)
  dy[:, :, 0] = 1
  w = np.zeros((16, 24), np.float32)
  w[0] = 1
  used = qat.quantize(w, (0,), jnp.float32)
  _, backward = jax.vjp(
    lambda x: qat.einsum('BLD,DF->BLF', x, used, input_gradient='int8'),
    jnp.zeros((1, 2000, 16)),
  )
  rounded_up = np.asarray(backward(jnp.asarray(dy))[0])[0, :, 0] * 127
  # Each sums 23 halves: 127 + 23 · 7 of those rounded down, and a coin each.
  coins = rounded_up - 127 - 23 * 7
  assert abs(coins.mean() - 11.5) < 0.3
  assert abs(coins.var() - 23 / 4) < 0.8


@pytest.mark.parametrize('value', [-5.0, -1.0, 1.0, 5.0])
def test_codes_are_cut_alike_on_both_sides(value):
  codes = int8.encode(jnp.full((3,), value), jnp.full((3,), 1 / 127))
  assert codes.tolist() == [int(np.sign(value)) * 127] * 3


@pytest.mark.parametrize(
  'size, dtype', [(16, jnp.bfloat16), (300, jnp.float32)]
)
def test_a_nan_does_not_become_a_quiet_zero(size, dtype):
  rng = np.random.default_rng(0)
  x = rng.standard_normal((2, 40, size)).astype(np.float32)
  w = rng.standard_normal((size, 24)).astype(np.float32)
  x[1, 2, 3] = np.nan
  y = qat.einsum(
    'BLD,DF->BLF',
    jnp.asarray(x, dtype),
    qat.quantize(w, (0,), jnp.float32),
  )
  assert np.isnan(y[1, 2]).all()
  assert np.isfinite(y[0]).all()
  _, scales = int8.quantize(jnp.asarray(x, dtype), (-1,))
  assert np.flatnonzero(np.isnan(scales)).tolist() == [42]


def test_key_value_codes_do_not_depend_on_the_rest_of_the_row():
  """What a cache would hold after one token is what training sees."""
  x_BMK = np.random.default_rng(0).standard_normal((2, 9, 8)).astype(np.float32)
  whole = qat.quantize_kv(jnp.asarray(x_BMK), None)
  for token in range(9):
    alone = qat.quantize_kv(jnp.asarray(x_BMK[:, token : token + 1]), None)
    np.testing.assert_array_equal(alone.codes[:, 0], whole.codes[:, token])
    np.testing.assert_array_equal(alone.scales[:, 0], whole.scales[:, token])


@pytest.mark.parametrize('exponent', [-24, -4, 8])
def test_dynamic_clamping_is_exactly_scale_invariant(exponent):
  """Codes of relu(x·W)² stay put when activations shrink by a power of two.

  A constant limit sends nearly all of them to the zero bin.
  """
  rng = np.random.default_rng(0)
  x = rng.standard_normal((1, 64, 32)).astype(np.float32)
  x /= np.sqrt((x * x).mean(-1, keepdims=True))
  w = (rng.standard_normal((32, 64)) / 32**0.5).astype(np.float32)
  gain = np.ones(32, np.float32)

  def codes(factor):
    weight = qat.quantize(w * np.float32(factor), (0,), jnp.float32)
    h = jnp.square(
      jax.nn.relu(qat.einsum('BLD,DF->BLF', jnp.asarray(x), weight))
    )
    limit = clamp.weight_rms_limit(weight, gain, 16.0)
    step = int8.scale_of(limit, 255)
    constant = int8.scale_of(jnp.float32(16 * 1.5**0.5), 255)
    return int8.encode_nonnegative(h, step), int8.encode_nonnegative(
      h, constant
    )

  base, _ = codes(1.0)
  dynamic, constant = codes(2.0**exponent)
  np.testing.assert_array_equal(dynamic, base)
  positive = base > -128
  if exponent <= -4:
    assert (constant[positive] == -128).mean() > 0.7


def test_the_predicted_hidden_rms_is_right_with_the_gain_in_it():
  rng = np.random.default_rng(0)
  x = rng.standard_normal((512, 256))
  gain = rng.uniform(0.2, 3, 256)
  w = rng.standard_normal((256, 512)) / 16
  h = np.square(np.maximum((x * gain) @ w, 0))
  limit = clamp.weight_rms_limit(jnp.asarray(w), jnp.asarray(gain), 1.0)
  assert float(limit) == pytest.approx(np.sqrt((h * h).mean()), rel=0.05)


def test_bungee_multiplies_and_has_the_products_gradient():
  x, w = drawn('BLD,DF->BLF')
  dy = jnp.asarray(np.random.default_rng(3).standard_normal((2, 5, 24)), 'f4')

  def f(w, b, stretch):
    weight = qat.quantize(w, (0,), jnp.float32)
    if stretch:
      weight = bungee.stretch(weight, b)
      return jnp.sum(dy * qat.einsum('BLD,DF->BLF', jnp.asarray(x), weight))
    y = qat.einsum('BLD,DF->BLF', jnp.asarray(x), weight)
    return jnp.sum(dy * y * jnp.exp(b))

  got = jax.value_and_grad(f, (0, 1))(w, jnp.float32(0.3), True)
  want = jax.value_and_grad(f, (0, 1))(w, jnp.float32(0.3), False)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
    got,
    want,
  )


def test_the_compiled_forward_pass_holds_only_s8_weights_in_its_dots(
  monkeypatch,
):
  monkeypatch.setattr(blocks, 'numba_cpu', lambda: None)
  config = model_config.ModelConfig(
    vocab_size=48,
    d_model=32,
    num_layers=7,
    num_heads=3,
    head_dim=8,
    d_ff=80,
    max_length=64,
    window=5,
  )
  model = transformer.Transformer(config)
  params = jax.eval_shape(lambda: state.init_params(model, 0))
  batch = rows.packed_batch([[24]], 24, 48)
  text = (
    jax.jit(
      lambda p: model.apply(
        {'params': p}, batch.tokens_BL, batch.visibility(), method='hidden'
      )
    )
    .lower(params)
    .as_text()
  )
  dots = re.findall(r'stablehlo\.dot_general.*: \((.*)\) -> (.*)', text)
  integer = [d for d in dots if 'xi8>' in d[0] and 'xi32>' in d[1]]
  # 4 projections of attention's 7 layers, less K and V of the 4 that share
  # them, 2 of each feed-forward, and QKᵀ.
  assert len(integer) == 7 * (2 + 2) + 2 * 3 + 7
  # The only float dots left are PV and the embedding's, none with a weight.
  weights = {'32x3x8', '32x8', '32x80'}
  for operands, _ in set(dots) - set(integer):
    assert not any(f'tensor<{w}x' in operands for w in weights), operands


@pytest.mark.parametrize('spec', ['BLF,DF->BLD', 'BLHK,DHK->BLD'])
@pytest.mark.parametrize('rows', [1, 2, 32, 33])
def test_a_few_rows_of_floats_stand_behind_the_weight(spec, rows):
  """XLA packs the second operand of a product: it has to be the small one."""
  sizes = {'F': 40, 'H': 5, 'K': 8}
  inner = tuple(sizes[letter] for letter in spec.partition(',')[0][2:])
  random = np.random.default_rng(0)
  x = random.normal(size=(1, rows, *inner)).astype(np.float32)
  w = random.normal(size=(24, *inner)).astype(np.float32)
  compiled = jax.jit(functools.partial(qat.einsum, spec)).lower(x, w).compile()
  np.testing.assert_allclose(
    compiled(x, w), np.einsum(spec, x, w), rtol=1e-5, atol=1e-5
  )
  products = re.findall(r'= f32\[([\d,]+)\]\S* dot\(', compiled.as_text())
  if 2 <= rows <= 32:
    assert products == [f'24,{rows}']
  else:
    assert f'24,{rows}' not in products
  gradient = jax.grad(lambda x: jnp.sum(qat.einsum(spec, x, w) ** 2))(x)
  product = np.einsum(spec, x, w)
  expected = 2 * np.tensordot(product, w, 1)
  np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('size, rows', [(96, 1), (96, 2), (96, 3), (40, 1)])
def test_a_few_rows_of_codes_are_summed_where_the_weight_lies(
  monkeypatch, size, rows
):
  """Without numba a loop of XLA's own reads it, or it stands in front."""
  monkeypatch.setattr(blocks, 'numba_cpu', lambda: None)
  random = np.random.default_rng(0)
  x = random.integers(-128, 128, (1, rows, size), np.int8)
  w = random.integers(-127, 128, (3, 8, size), np.int8)
  letters = letters_lib.parse(letters_lib.turn('BLD,DHK->BLHK'))
  run = jax.jit(lambda x, w: product.multiply(letters, x, w, jnp.int32))
  compiled = run.lower(x, w).compile()
  wanted = np.einsum('BLD,HKD->BLHK', x.astype(np.int32), w)
  np.testing.assert_array_equal(compiled(x, w), wanted)
  text = compiled.as_text()
  if size % 32 == 0 and rows <= 2:
    # Codes are apart from the loop: none of it is in a fusion with them.
    assert ' dot(' not in text and 'reduce-window' in text
  else:
    assert re.findall(r'= s32\[([\d,]+)\]\S* dot\(', text) == [
      f'24,{max(rows, 2)}'
    ]


def test_values_of_codes_pass_their_gradient_to_what_was_coded():
  random = np.random.default_rng(0)
  x, dy = (random.normal(size=(2, 3, 8)).astype(np.float32) for _ in range(2))

  def of(x):
    return jnp.sum(dy * qat.values(qat.quantize(x, (-1,), jnp.float32)))

  np.testing.assert_array_equal(jax.grad(of)(x), dy)
  coded = qat.quantize(x, (-1,), jnp.float32)
  np.testing.assert_array_equal(qat.values(coded), int8.dequantize(coded))
