"""A decoding step of 13b's width, compiled for devices that are not here.

Three layers of it, one in each kind that makes keys and values and one that
shares: each layer of a deeper model is one more of these.
"""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.aot import build
from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.device import weights
from kaiju_jax.model import paging
from kaiju_jax.model import presets
from kaiju_jax.model import transformer
from tests import compiled

pytestmark = pytest.mark.aot

ROWS, LENGTH = 16, 8192


def _step(tokens: int):
  """Returns the network of three layers, and the shapes of a step."""
  config = presets.preset('13b')
  config.layout = 'L0 L0 G2'
  pools = paging.pools(config.layers(), ROWS, LENGTH)
  network = extend.Network(
    transformer.Transformer(config, unstacked=True), pools
  )

  def made():
    stacked = transformer.Transformer(config)
    tokens_BL = jnp.zeros((1, 1), jnp.int32)
    params = stacked.init(
      jax.random.key(0), tokens_BL, visibility_lib.causal(1)
    )['params']
    return weights.ready(params, config)

  int32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
  shapes = (
    jax.eval_shape(made),
    jax.eval_shape(lambda: cache_lib.make(config, pools, ROWS)),
    {'local': int32((ROWS, pools['local'].row_pages))},
    int32((ROWS,)),
    int32((ROWS, tokens)),
    int32((ROWS,)),
  )
  return network, shapes


_H100 = 'h100_8', 'custom_call_target="__gpu\\$xla.gpu.triton"'
_V5P = 'v5p_128', 'custom_call_target="tpu_custom_call"'


@pytest.mark.parametrize(
  ('accelerator', 'kernel', 'tokens'),
  [
    (*_H100, 128),
    (*_V5P, 1),
    pytest.param(*_H100, 1, marks=pytest.mark.full),
    pytest.param(*_V5P, 128, marks=pytest.mark.full),
  ],
)
def test_a_step_runs_on_its_kernels_and_moves_no_pool(
  accelerator, kernel, tokens
):
  network, shapes = _step(tokens)
  placed = compiled.placed(shapes, accelerator)
  step = jax.jit(functools.partial(extend.text, network), donate_argnums=1)
  program = build.build(step, placed)
  # One for each layer's pool at least.
  assert len(re.findall(kernel, program.text)) >= 3
  pools = sum(
    x.size
    for tables in shapes[1].kinds.values()
    for pool in (*tables.k, *tables.v)
    for x in (pool.codes,)
  )
  # Donated, and written where it lies.
  assert program.memory.aliased > pools
  global_pool = shapes[1].kinds['global'].k[0].codes.shape
  size = ','.join(map(str, global_pool))
  assert not [
    line
    for line in program.text.splitlines()
    if re.search(rf's8\[{size}\]\S* (copy|copy-start|transpose)\(', line)
  ]
  # Every projection is a product of codes: q, o, in and out of three layers, k
  # and v of two, which XLA may make one with q. The head is float, attention
  # the kernels'.
  matmuls = build.matmuls(program)
  assert not any(x.is_widened for x in matmuls)
  assert sum(x.left == x.right == 's8' for x in matmuls) in (12, 16)
