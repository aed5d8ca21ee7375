"""What a step of decoding must not do, on programs written out here."""

import dataclasses

import jax
import pytest

from kaiju_jax.aot import build
from kaiju_jax.aot import decode
from kaiju_jax.aot.hlo import collectives as collectives_lib
from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.model import config as model_config
from kaiju_jax.model import paging
from kaiju_jax.model import presets
from tests import compiled
import tpu_gpu_configs

TOKENS, DEVICES = 64, 8
CONFIG = dataclasses.replace(presets.preset('110b'), num_layers=14)
D, H, K, F = 12_288, 96, 128, 51_200


def cache():
  """Returns the shapes of a cache on eight devices."""
  pools = paging.pools(CONFIG.layers(), TOKENS, 2048, devices=DEVICES)
  one = jax.eval_shape(lambda: cache_lib.make(CONFIG, pools, TOKENS))

  def whole(x):
    return jax.ShapeDtypeStruct((DEVICES * x.shape[0], *x.shape[1:]), x.dtype)

  kinds = {
    name: x._replace(k=jax.tree.map(whole, x.k), v=jax.tree.map(whole, x.v))
    for name, x in one.kinds.items()
  }
  return one._replace(kinds=kinds)


CACHE = cache()
HELD = sum(x.size * x.dtype.itemsize for x in decode._pages(CACHE)) // DEVICES


def program(line='', aliased=HELD):
  """Returns a program of one line."""
  root = '  ROOT %zero = f32[] constant(0)'
  text = f'HloModule m\n\nENTRY %main () -> f32[] {{\n{line}\n{root}\n}}\n'
  memory = build.Memory(0, 0, aliased, 0)
  return build.Program(text, memory, 0, 0, ())


def sent(kind, dtype, *shape, times=1, is_sure=True):
  width = {'s8': 1, 'u8': 1, 'bf16': 2, 'f32': 4}[dtype]
  size = width
  for n in shape:
    size *= n
  return collectives_lib.Collective(
    *(kind, dtype, shape, ('tensor',), DEVICES, times),
    *(size, float(size), is_sure, 'planted'),
  )


def found(*collectives, **changes):
  return list(
    decode.problems(
      program(**changes), collectives, CONFIG, TOKENS, CACHE, DEVICES
    )
  )


LAYER = (
  sent('all-gather', 's8', 1, TOKENS, D),
  sent('all-gather', 'f32', 1, TOKENS, 1),
  sent('all-gather', 's8', TOKENS, H, K),
  sent('all-to-all', 'u8', DEVICES, TOKENS, H // DEVICES, 2 * K + 4),
  # Added as int32, and scaled behind it.
  sent('reduce-scatter', 'f32', 1, TOKENS // DEVICES, D),
  sent('all-gather', 'bf16', TOKENS, D),
)


def test_a_layer_is_allowed():
  assert found(*LAYER) == []


@pytest.mark.parametrize(
  'planted',
  [
    sent('all-gather', 's8', D, F // DEVICES),
    sent('all-gather', 's8', D, H // DEVICES, K),
    sent('all-to-all', 's8', F // DEVICES, D),
    # Rings of all texts, and of a global layer alone.
    sent('all-gather', 's8', TOKENS, 17 * 64, K),
    sent('reduce-scatter', 's8', TOKENS, 2048, K // DEVICES),
    # Floats are gathered twice.
    sent('all-gather', 'bf16', TOKENS, D),
    sent('all-gather', 'f32', TOKENS, D),
    sent('all-gather', 's8', 1, times=3, is_sure=False),
  ],
  ids=lambda x: f'{x.kind}-{x.dtype}{list(x.shape)}',
)
def test_what_a_step_must_not_send_is_found(planted):
  (line,) = found(*LAYER, planted)
  assert planted.kind in line or 'gathers of float' in line


def test_a_gather_of_floats_in_a_loop_counts_as_often_as_it_runs():
  (line,) = found(sent('all-gather', 'bf16', TOKENS, D, times=14))
  assert line.startswith('14 ')


def test_pages_must_be_donated_and_stay():
  (line,) = found(aliased=HELD - HELD // 50)
  assert 'donated' in line
  pool = CACHE.kinds['global'].k[0].codes.shape
  shape = f'{pool[0] // DEVICES},{pool[1]},{pool[2]}'
  copy = f'  %c = s8[{shape}]{{2,1,0}} copy(s8[{shape}] %p)'
  (line,) = found(line=copy)
  assert shape in line
  assert found(line=copy.replace('copy', 'bitcast')) == []


SMALL = model_config.ModelConfig(
  vocab_size=512,
  d_model=256,
  num_heads=8,
  head_dim=128,
  d_ff=512,
  layout='L0 G1',
  window=64,
)


@pytest.mark.parametrize(
  ('place', 'is_split'),
  [
    ('cpu_8', True),
    ('cpu_8', False),
    pytest.param('h100_8', True, marks=pytest.mark.aot),
    pytest.param('h100_8', False, marks=pytest.mark.aot),
    pytest.param('v5p_8', True, marks=pytest.mark.aot),
    pytest.param('v5p_8', False, marks=[pytest.mark.aot, pytest.mark.full]),
  ],
)
def test_a_compiled_step(place, is_split):
  accelerator = tpu_gpu_configs.load(place)
  chip = accelerator.chip.platform
  least = extend.SPLIT_FROM['gpu' if chip == 'cuda' else chip]
  tokens = least if is_split else least - 1
  with compiled.installed():
    figures = decode.compile_step(SMALL, accelerator, tokens, 256)
  # A CPU may multiply codes as int32. A TPU's compiler lays scales of stripes
  # of less than 128 slots out in another way than the kernel, for each owner.
  known = {'cpu': 'as something wider', 'tpu': ',32].'}.get(chip, 'nothing')
  assert [x for x in figures['problems'] if known not in x] == []
  assert figures['aliased_bytes'] >= figures['page_bytes'] > 0
  # Per layer queries cross once as codes; outputs and lse return to the heads'
  # owners. (D 256, H·K 1,024.) Split tokens enter twice, as codes, and leave
  # twice; others are summed on all devices, as are embeddings.
  share = (accelerator.devices - 1) / accelerator.devices
  wire, starts = figures['wire'], figures['launches']
  entered = 2 * 256 if is_split else 0
  assert wire['all-gather s8'] == (entered + 1024) * share
  assert wire['all-to-all u8'] == (2 * 1024 + 4 * 8) * share
  assert starts['all-to-all'] == 1
  left, summed = 'reduce-scatter', 'all-reduce'
  if not is_split:
    left, summed = summed, left
  assert starts[left] == 2.5
  # A TPU's compiler gathers the scales of a few tokens as a sum.
  assert summed not in starts or (is_split and chip == 'tpu')
