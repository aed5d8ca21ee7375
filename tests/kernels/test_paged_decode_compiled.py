"""Paged decode, compiled for devices that are not here, at the presets' shapes.

Heads are those of 13b, 34b and 110b, whole and an eighth of them, as a tensor
axis of eight leaves. Contexts of 8k to 128k tokens, batches of 8 to 64.
"""

import functools
import re

import jax
import pytest

from kaiju_jax.aot import build
from kaiju_jax.kernels.paged_decode import api
from kaiju_jax.kernels.paged_decode import blocks
from kaiju_jax.kernels.paged_decode import plan as plan_lib
from tests import compiled

pytestmark = pytest.mark.aot

_K = 128
# Heads, batch, context, slots of a page: each value of each at least once.
SHAPES = (
  (5, 64, 8192, 16),
  (7, 8, 131_072, 128),
  (12, 32, 32_768, 64),
  (40, 16, 32_768, 32),
  (56, 8, 131_072, 128),
  (96, 8, 32_768, 16),
  (96, 64, 8192, 128),
)


def _in_ci(chosen, shapes=SHAPES):
  """Returns the shapes; all but the chosen ones are for `make aot-full`."""
  return [
    shape if shape in chosen else pytest.param(shape, marks=pytest.mark.full)
    for shape in shapes
  ]


def _decode(
  heads,
  batch,
  context,
  slots,
  *,
  implementation,
  cache='int8',
  per='token',
  queries=1,
  window=None,
  sizes=None,
):
  """Returns a jitted decode with a plan made before, and its arguments."""
  logical = context // slots
  pool = batch * logical, slots

  def array(shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype)

  coded = cache == 'int8' and per == 'token'
  q_dtype = 'int8' if coded else 'float32' if cache == 'float32' else 'bfloat16'
  scales = {}
  if cache == 'int8':
    shape = pool if per == 'token' else (_K,)
    scales = {name: array(shape, 'float32') for name in ('k_scale', 'v_scale')}
  if coded:
    scales['q_scale_BLH'] = array((batch, queries, heads), 'float32')
  plan = plan_lib.Plan(
    *[array((batch, logical), 'int32')] * 2, *[array((batch,), 'int32')] * 2
  )
  slot, query = (array((batch, n), 'int32') for n in (context, queries))
  arrays = [
    array((batch, queries, heads, _K), q_dtype),
    *[array((*pool, _K), cache)] * 2,
    array((batch, logical), 'int32'),
    *(slot, slot, query, query, slot),
  ]

  @jax.jit
  def run(arrays, plan, scales):
    return api.decode(
      *arrays,
      window=window,
      scale=_K**-0.5,
      plan=plan,
      sizes=sizes,
      implementation=implementation,
      **scales,
    )

  return run, (arrays, plan, scales)


def _gpu(*shape, **options):
  run, arguments = _decode(*shape, implementation='pallas_gpu', **options)
  return compiled.gpu(run, *arguments)['paged_decode']


def _instruction(heads, dtype, queries=1):
  """A warp group's where there are rows for it, otherwise a warp's."""
  return f'{"wgmma" if heads * queries > 32 else "mma"} {dtype}'


def _check_gpu(kernel, heads, qk, pv, queries=1):
  assert kernel.spill_stores == kernel.spill_loads == 0
  assert kernel.instructions[_instruction(heads, qk, queries)] > 0
  assert kernel.instructions[_instruction(heads, pv, queries)] > 0


@pytest.mark.parametrize('shape', _in_ci([SHAPES[0], SHAPES[3], SHAPES[6]]))
def test_codes_with_a_scale_per_token_on_h100(shape):
  _check_gpu(_gpu(*shape), shape[0], 's8', 'bf16')


@pytest.mark.parametrize(
  'shape', _in_ci([SHAPES[3]], SHAPES[2:4] + SHAPES[-1:])
)
def test_codes_with_a_scale_per_channel_on_h100(shape):
  kernel = _gpu(*shape, per='channel')
  _check_gpu(kernel, shape[0], 'bf16', 'bf16')
  assert not any('s8' in name for name in kernel.instructions)


@pytest.mark.parametrize(
  'shape', _in_ci([SHAPES[5]], SHAPES[:1] + SHAPES[3:5] + SHAPES[-2:-1])
)
def test_half_precision_on_h100(shape):
  _check_gpu(_gpu(*shape, cache='bfloat16'), shape[0], 'bf16', 'bf16')


@pytest.mark.parametrize(
  ('heads', 'queries'),
  [
    (12, 8),
    pytest.param(5, 1, marks=pytest.mark.full),
    pytest.param(96, 4, marks=pytest.mark.full),
  ],
)
def test_windows_and_beams_on_h100(heads, queries):
  # A ring: the window's pages and one more.
  kernel = _gpu(heads, 16, 1152, 128, queries=queries, window=1024)
  _check_gpu(kernel, heads, 's8', 'bf16', queries)


@pytest.mark.full
def test_a_bad_choice_of_tiles_spills_on_h100():
  # 128 rows of a sum and of weights in the registers of four warps.
  kernel = _gpu(96, 8, 32_768, 128, sizes=blocks.Sizes(128, 64, 8, 4, 5))
  assert kernel.spill_stores > 0


@pytest.mark.full
def test_full_precision_compiles_for_h100():
  assert _gpu(12, 8, 8192, 16, cache='float32').spill_stores == 0


@pytest.mark.parametrize(
  ('accelerator', 'implementation'),
  [
    ('h100_8', 'pallas_gpu'),
    ('v5p_128', 'pallas_tpu'),
    pytest.param('h100_8', 'xla', marks=pytest.mark.full),
  ],
)
def test_the_pool_is_neither_copied_nor_moved(accelerator, implementation):
  run, arguments = _decode(
    12, 8, 8192, 128, implementation=implementation, window=1024
  )
  program = build.build(run, compiled.placed(arguments, accelerator))
  pool = 8 * 8192 * (_K + 4)
  assert program.memory.arguments > 2 * pool
  # Twelve bytes a slot, beside 264, are laid out anew for a TPU, and partial
  # outputs are padded.
  assert program.memory.temporary < 0.25 * pool
  moved = [
    line
    for line in program.text.splitlines()
    if re.search(r's8\[512,128,128\].* (copy|copy-start|fusion)\(', line)
  ]
  assert not moved


def _on_tpu(accelerator, *shape, **options):
  make = functools.partial(
    _decode, *shape, implementation='pallas_tpu', **options
  )
  counts = compiled.tpu(make, accelerator)
  [kernel] = [counts[name] for name in counts if 'paged_decode' in name]
  return set(kernel)


_WHOLE = (12, 8, 32_768, 128), {}
_WINDOW = (96, 16, 1152, 128), {'window': 1024, 'queries': 2}


@pytest.mark.parametrize(
  ('accelerator', 'shape', 'options'),
  [
    ('v5e_256', *_WHOLE),
    ('v5p_128', *_WINDOW),
    *(
      pytest.param(*rest, marks=pytest.mark.full)
      for rest in (
        ('v5e_256', *_WINDOW),
        ('v5p_128', *_WHOLE),
        ('v6e_256', *_WHOLE),
        ('v6e_256', *_WINDOW),
      )
    ),
  ],
)
def test_codes_with_a_scale_per_token_on_tpu(accelerator, shape, options):
  instructions = _on_tpu(accelerator, *shape, **options)
  assert instructions == {'vmatmul s8', 'vmatmul bf16'}


@pytest.mark.full
@pytest.mark.parametrize(
  ('accelerator', 'shape', 'options'),
  [
    ('v5e_256', (40, 8, 8192, 64), {'per': 'channel'}),
    ('v6e_256', (7, 8, 8192, 16), {'cache': 'bfloat16'}),
  ],
)
def test_other_caches_on_tpu(accelerator, shape, options):
  assert _on_tpu(accelerator, *shape, **options) == {'vmatmul bf16'}
