"""What is known about a program without its device, and clear refusals."""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax.aot import build
from kaiju_jax.aot import devices
from kaiju_jax.aot import flags
from kaiju_jax.costs import accelerator
from kaiju_jax.kernels import dispatch
from tests import compiled
import tpu_gpu_configs

pytestmark = pytest.mark.versions


@pytest.mark.parametrize(
  'name', compiled.on('cpu_8', 'h100_512', 'v5p_1024', 'v6e_256')
)
def test_a_slice_has_its_devices(name):
  slice_ = tpu_gpu_configs.load(name)
  assert len(compiled.devices(name)) == slice_.devices
  hosts = {device.process_index for device in compiled.devices(name)}
  assert len(hosts) == slice_.hosts


@pytest.mark.parametrize('name', compiled.on('cpu_8', 'h100_8', 'v5p_128'))
def test_memory_and_donation(name):
  device = compiled.devices(name)[0]
  x = jax.ShapeDtypeStruct(
    (1024, 1024),
    jnp.float32,
    sharding=jax.sharding.SingleDeviceSharding(device),
  )

  def f(x, y):
    return x * 2 + y

  size = 4 * 1024 * 1024
  kept = build.build(jax.jit(f), (x, x)).memory
  given = build.build(jax.jit(f, donate_argnums=0), (x, x)).memory
  assert kept.arguments == given.arguments == 2 * size
  assert kept.aliased == 0
  assert given.aliased == size
  assert given.needed == kept.needed - size


@pytest.mark.parametrize(
  ('name', 'platform'),
  [
    ('cpu_8', 'cpu'),
    pytest.param('h100_8', 'gpu', marks=pytest.mark.aot),
    pytest.param('v5p_128', 'tpu', marks=pytest.mark.aot),
  ],
)
def test_kernels_are_traced_for_the_device(name, platform):
  x = jax.ShapeDtypeStruct(
    (8,),
    jnp.float32,
    sharding=jax.sharding.SingleDeviceSharding(compiled.devices(name)[0]),
  )
  seen = []

  def f(x):
    seen.append(dispatch.platform())
    return x

  build.build(jax.jit(f), ({'x': x},))
  assert seen == [platform]
  assert dispatch.platform() == 'cpu'


@pytest.mark.parametrize(
  'name', compiled.on('h100_8', 'v5p_128', 'v5e_256', 'v6e_256')
)
def test_shipped_flags_are_known(name):
  compiled.devices(name)
  flags.check(tpu_gpu_configs.load(name))


def test_an_unknown_flag_is_named():
  slice_ = dataclasses.replace(
    tpu_gpu_configs.load('h100_8'), flags={'xla_gpu_make_it_fast': True}
  )
  with pytest.raises(ValueError, match=r'h100_8: flag xla_gpu_make_it_fast=Tr'):
    flags.check(slice_)


def test_a_flags_bad_value_is_named():
  slice_ = dataclasses.replace(
    tpu_gpu_configs.load('h100_8'),
    flags={'xla_gpu_enable_latency_hiding_scheduler': 'perhaps'},
  )
  with pytest.raises(
    ValueError, match=r"scheduler=perhaps: .*'perhaps' is not"
  ):
    flags.check(slice_)


def test_too_few_cpu_devices():
  slice_ = dataclasses.replace(
    tpu_gpu_configs.load('cpu_8'), name='cpu_16', devices_per_host=16
  )
  with pytest.raises(
    ValueError, match='cpu_16 has 16 devices, but there are 8'
  ):
    devices.find(slice_)


_WITHOUT = """
import sys
# No plug-in can be imported.
for name in ('jax_plugins', 'libtpu'):
  sys.modules[name] = None
from kaiju_jax.aot import devices
import tpu_gpu_configs
try:
  devices.find(tpu_gpu_configs.load(sys.argv[1]))
except devices.MissingPlugin as error:
  print(error)
"""


@pytest.mark.parametrize(
  ('name', 'expected'),
  [
    ('h100_8', ('jax-cuda12-plugin==', 'jax-cuda12-pjrt==', '[aot-gpu]')),
    ('v5p_128', ('the package libtpu', '[aot-tpu]')),
  ],
)
def test_missing_packages_are_named(name, expected):
  done = subprocess.run(
    [sys.executable, '-c', _WITHOUT, name],
    capture_output=True,
    text=True,
    check=True,
    # libtpu notes in the environment where it was found.
    env=os.environ | {'PYTHONPATH': os.getcwd(), 'TPU_LIBRARY_PATH': ''},
  )
  for part in expected:
    assert part in done.stdout


def test_what_the_compiler_says_is_kept():
  class Lowered:
    def lower(self, x):
      os.write(2, b'quiet\nInvoluntary full rematerialization of %x\n')
      return jax.jit(jnp.sin).lower(x)

  program = build.build(Lowered(), (jnp.ones(4),))
  assert program.complaints == ('Involuntary full rematerialization of %x',)


def test_a_mesh_of_another_size_is_refused():
  slice_ = tpu_gpu_configs.load('h100_8')
  with pytest.raises(ValueError, match='64 devices, but 8 hosts'):
    accelerator.check(
      dataclasses.replace(
        tpu_gpu_configs.load('h100_64'), hosts=8, devices_per_host=4
      )
    )
  with pytest.raises(ValueError, match="platform='gpu'"):
    accelerator.check(
      dataclasses.replace(
        slice_, chip=dataclasses.replace(slice_.chip, platform='gpu')
      )
    )


def test_what_was_compiled_before_is_compiled_again():
  """A program from the cache says nothing, writes nothing, takes no time."""
  hits = []

  def listen(event, **_):
    if event == '/jax/compilation_cache/cache_hits':
      hits.append(event)

  def fresh():
    return jax.jit(lambda x: 3 * jnp.sin(x))

  x = jnp.ones(4)
  jax.monitoring.register_event_listener(listen)
  try:
    fresh().lower(x).compile()
    fresh().lower(x).compile()
    if not hits:
      pytest.skip('this process keeps nothing on disk')
    hits.clear()
    build.build(fresh(), (x,))
    assert not hits
    fresh().lower(x).compile()
    assert hits
  finally:
    jax.monitoring.unregister_event_listener(listen)
