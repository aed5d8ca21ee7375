"""What the device command compiles there compiles here, for Hopper.

`make aot` compiles the programs of each slice that are QUICK, `make aot-full`
all of them. An H200 has an H100's processor: its programs are the same text,
and some of them stand for all.
"""

import pytest

from experiments.benchmarks.device import order
from kaiju_jax.aot import build
from kaiju_jax.aot import devices as devices_lib
from tests import compiled
from tests.aot import device_programs

# The beginnings of names: one program at least of each kernel and pass.
QUICK = {
  'ceilings': ('',),
  'numerics': (
    'attention, pallas_gpu, int8: windows',
    'paged decode, pallas_gpu, bfloat16: several lengths',
    'int8 product, pallas_gpu, bfloat16, exact parts: by the last',
    'squinch encode, pallas_gpu, zero, quarter',
    'squinch decode, pallas_gpu, zero, quarter',
  ),
  'attention': (
    '250m, window: visibility_attention forward, pallas_gpu',
    '250m, window: visibility_attention backward, pallas_gpu',
  ),
  'int8_matmul': ('13b w_q: int8_matmul codes',),
  'paged_decode': ('13b/8, 64 × 16k: paged_decode, pallas_gpu, int8',),
  'squinch': ('13b keys: squinch encode',),
  'step': (),
  # The kernels that read a bf16 cache stand under numerics.
  'decode': ('int8, 4 layers, 1 × 1',),
  'needle': ('full',),
  # A search expects candidates that do not compile; commands compile `tiny`.
  'autotune': (),
  'startup': (),
}
WITHOUT = 'autotune', 'startup'


def _build(make, device):
  with build.tracing_for(device):
    jitted, arguments = make()
  return build.build(jitted, devices_lib.place(arguments, device))


def _failures(name, accelerator, beginnings):
  device = compiled.devices(accelerator)[0]
  with build.tracing_for(device):
    chosen = device_programs.of(name, device, beginnings)
  assert chosen
  found = {}
  for label, make in chosen.items():
    try:
      program = _build(make, device)
    except Exception as error:  # All that fail are told together.
      # Its wheel, 1.1 GB, is not among what `make aot` installs.
      if 'cuDNN not found' in str(error):
        continue
      found[label] = f'{type(error).__name__}: {error}'[:300]
    else:
      needed = program.memory.needed / 2**30
      if needed > 76:
        found[label] = f'needs {needed:.0f} GiB'
  return found


def test_every_slice_is_named():
  assert set(QUICK) == set(order.SLICES)


@pytest.mark.aot
@pytest.mark.parametrize('name', [name for name in QUICK if QUICK[name]])
def test_some_of_each_slice(name):
  assert not _failures(name, 'h100_8', QUICK[name])


@pytest.mark.aot
@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('name', [n for n in QUICK if n not in WITHOUT])
def test_all_of_each_slice(name):
  assert not _failures(name, 'h100_8', [''])


@pytest.mark.aot
def test_an_h200_has_the_programs_of_an_h100():
  texts = []
  for accelerator in 'h100_8', 'h200_8':
    device = compiled.devices(accelerator)[0]
    label = '13b keys: squinch encode, pallas_gpu'
    with build.tracing_for(device):
      programs = device_programs.of('squinch', device, [label])
    texts.append(_build(programs[label], device).text)
  assert texts[0] == texts[1]
