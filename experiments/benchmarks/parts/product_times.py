"""Times products of a few rows on a CPU, for `decode`.

For the shapes of `benchmarks.decode` (8 rows; 12 heads of 64 and 2,112 slots in
each of 12 layers): products of activations and weights with either of them in
front, the head of 32,000 tokens by a table that lies either way, attention's
two products over keys that lie side by side, `paged_decode` over pages of 64
slots, products of codes with weights that lie either way, and the same by the
other arms of `serve --int8`. It gives processor time, the least of several
runs, because other processes' load hardly moves that.
"""

from collections.abc import Callable
import functools
import time

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels.paged_decode import api
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import qat

_LAYERS, _ROWS, _HEADS, _K, _SLOTS, _PAGES = 12, 8, 12, 64, 64, 33


def _drawn(shape, dtype):
  """Returns one random array for each layer."""
  random = np.random.default_rng(0)
  values = [random.integers(-127, 128, shape, np.int8) for _ in range(_LAYERS)]
  return [jnp.asarray(x).astype(dtype) for x in values]


def _print(
  repeats: int, name: str, function: Callable[..., jax.Array], *arrays
) -> None:
  """Prints the milliseconds of all layers, each with arrays of its own."""
  run = jax.jit(lambda *layers: [function(*one) for one in zip(*layers)])
  jax.block_until_ready(run(*arrays))
  taken = []
  for _ in range(repeats):
    started = time.process_time()
    jax.block_until_ready(run(*arrays))
    taken.append(time.process_time() - started)
  print(f'{name:44} {1e3 * min(taken):7.2f} ms', flush=True)


def _einsum(spec: str, dtype):
  return functools.partial(jnp.einsum, spec, preferred_element_type=dtype)


def _weights(show) -> None:
  w_DF = _drawn((768, 3072), jnp.float32)
  for rows in 1, 2, 8, 32, 64, 128:
    x_RF = _drawn((rows, 3072), jnp.float32)
    first = _einsum('RF,DF->RD', jnp.float32)
    turned = _einsum('DF,RF->DR', jnp.float32)
    show(f'{rows} rows in front of the weight', first, x_RF, w_DF)
    show(
      f'{rows} rows behind the weight',
      lambda x, w, turned=turned: lax.optimization_barrier(turned(w, x)).T,
      x_RF,
      w_DF,
    )


def _codes(show) -> None:
  for letters, shape in ('DF', (1024, 3072)), ('FD', (3072, 1024)):
    product = functools.partial(
      qat.einsum, f'RD,{letters}->RF', dtype=jnp.float32
    )
    scale = jnp.full((1, 3072) if letters == 'DF' else (3072, 1), 1e-3)
    weights = [int8.Quantized(w, scale) for w in _drawn(shape, jnp.int8)]
    for rows in 1, 2, 8, 32, 256:
      x_RD = _drawn((rows, 1024), jnp.float32)
      show(f'{rows} rows of codes, weight {letters}', product, x_RD, weights)
  # The two other arms of `serve --int8`, with the last weights.
  by_floats = functools.partial(product, is_float=True)
  floats = [w.codes.astype(jnp.float32) for w in weights]
  for rows in 1, 8, 32, 256:
    x_RD = _drawn((rows, 1024), jnp.float32)
    show(f'{rows} rows of floats, codes FD', by_floats, x_RD, weights)
    show(f'{rows} rows of floats, floats FD', product, x_RD, floats)


def _head(show) -> None:
  random = np.random.default_rng(0)
  table_DV = jnp.asarray(random.normal(size=(768, 32_000)).astype(np.float32))
  table_VD = jnp.asarray(table_DV.T)
  for rows in 1, 2, 8, 32:
    x_RD = jnp.asarray(random.normal(size=(rows, 768)).astype(np.float32))
    for name, table in ('DV', table_DV), ('VD', table_VD):
      product = functools.partial(
        qat.einsum, f'RD,{name}->RV', dtype=jnp.float32
      )
      show(
        f'{rows} rows, one head [{", ".join(name)}]', product, [x_RD], [table]
      )


def _attention(show, dtype, sums) -> None:
  name = jnp.dtype(dtype).name
  M = _PAGES * _SLOTS
  q_BRK = _drawn((_ROWS, _HEADS, _K), dtype)
  k_BMK = _drawn((_ROWS, M, _K), dtype)
  weights_BRM = _drawn((_ROWS, _HEADS, M), jnp.float32)
  v_BMK = _drawn((_ROWS, M, _K), jnp.float32)
  show(f'{name}: QK', _einsum('BRK,BMK->BRM', sums), q_BRK, k_BMK)
  show(
    f'{name}: PV of floats',
    _einsum('BRM,BMK->BRK', jnp.float32),
    weights_BRM,
    v_BMK,
  )
  pages = _ROWS * _PAGES
  table_BN = np.random.default_rng(0).permutation(pages).astype(np.int32)
  slot_BM = jnp.tile(jnp.arange(M, dtype=jnp.int32), (_ROWS, 1))
  last_B1 = jnp.full((_ROWS, 1), M - 50, jnp.int32)
  layout = (
    jnp.asarray(table_BN.reshape(_ROWS, _PAGES)),
    slot_BM,
    jnp.where(slot_BM <= last_B1, M, slot_BM),
    last_B1,
    last_B1,
    slot_BM,
  )
  plan = api.make_plan(*layout, pages=pages, window=None)
  scales = {}
  if dtype == jnp.int8:
    scale_PS = jnp.full((pages, _SLOTS), 1e-3)
    scales = {
      'q_scale_BLH': jnp.full((_ROWS, 1, _HEADS), 1e-3),
      'k_scale': scale_PS,
      'v_scale': scale_PS,
    }

  def paged(q_BRK, k_PSK, v_PSK):
    return api.decode(
      q_BRK[:, None],
      k_PSK,
      v_PSK,
      *layout,
      window=None,
      scale=0.1,
      dtype=jnp.float32,
      plan=plan,
      **scales,
    )[0]

  pool_PSK = _drawn((pages, _SLOTS, _K), dtype)
  show(f'{name}: paged_decode', paged, q_BRK, pool_PSK, pool_PSK)


def report(repeats: int) -> None:
  """Prints processor times, the least of `repeats` runs each."""
  show = functools.partial(_print, repeats)
  _weights(show)
  _codes(show)
  _head(show)
  _attention(show, jnp.float32, jnp.float32)
  _attention(show, jnp.int8, jnp.int32)
