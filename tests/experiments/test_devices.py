"""The flags of hardware: a mesh, a cluster, an accelerator's environment."""

import os
import sys
import types

from absl import flags
from absl.testing import flagsaver
import pytest

from experiments import devices
from kaiju_jax.sharding import config


@pytest.fixture(autouse=True)
def parsed(monkeypatch):
  flags.FLAGS.mark_as_parsed()
  monkeypatch.setattr(os, 'environ', {})
  with flagsaver.flagsaver():
    yield


@pytest.mark.parametrize(
  'given, widths',
  [
    ({}, None),
    ({'fsdp': 4}, (4, 1)),
    ({'tensor': 2}, (1, 2)),
    ({'fsdp': 4, 'tensor': 2}, (4, 2)),
  ],
)
def test_the_width_that_is_not_given_is_1(given, widths):
  with flagsaver.flagsaver(**given):
    mesh = devices.prepare()
  assert mesh == (widths and config.MeshConfig(*widths))


@pytest.fixture
def slices(monkeypatch):
  """Stands for tpu_gpu_configs/, with one slice."""
  one = types.SimpleNamespace(
    mesh=config.MeshConfig(8, 2),
    flags={'xla_gpu_x': True, 'xla_tpu_y': 3},
    environment={'KAIJU_A': 'a', 'KAIJU_B': 'b', 'XLA_FLAGS': '--xla_z=1'},
  )
  folder = types.ModuleType('tpu_gpu_configs')
  folder.load = {'one': one}.__getitem__
  monkeypatch.setitem(sys.modules, 'tpu_gpu_configs', folder)


def test_an_accelerator_sets_what_the_user_has_not(slices):
  os.environ.update({'KAIJU_B': 'mine', 'XLA_FLAGS': '--xla_gpu_x=false'})
  with flagsaver.flagsaver(accelerator='one'):
    assert devices.prepare() == config.MeshConfig(8, 2)
  assert os.environ['XLA_FLAGS'] == (
    '--xla_z=1 --xla_gpu_x=true --xla_gpu_x=false'
  )
  assert os.environ['LIBTPU_INIT_ARGS'] == '--xla_tpu_y=3'
  assert (os.environ['KAIJU_A'], os.environ['KAIJU_B']) == ('a', 'mine')


def test_widths_go_before_the_accelerator_s(slices):
  with flagsaver.flagsaver(accelerator='one', fsdp=16):
    assert devices.prepare() == config.MeshConfig(16, 1)


def test_accelerators_that_are_not_here(monkeypatch):
  monkeypatch.setitem(sys.modules, 'tpu_gpu_configs', None)
  with (
    flagsaver.flagsaver(accelerator='h100_64'),
    pytest.raises(ValueError, match='--accelerator=h100_64: tpu_gpu_configs/'),
  ):
    devices.prepare()


def test_a_cluster():
  from kaiju_jax.sharding import processes

  assert devices.cluster() is None
  with flagsaver.flagsaver(multihost=True):
    assert devices.cluster() == processes.Cluster()
  given = {'coordinator': 'one:123', 'processes': 4, 'process': 3}
  with flagsaver.flagsaver(multihost=True, **given):
    assert devices.cluster() == processes.Cluster('one:123', 4, 3)


@pytest.mark.parametrize(
  'given, message',
  [
    ({'process': 0}, 'need --multihost'),
    ({'multihost': True, 'process': 0}, '--coordinator is missing'),
    (
      {
        'multihost': True,
        'coordinator': 'one',
        'processes': 2,
        'process': 0,
      },
      '--coordinator=one: must be HOST:PORT',
    ),
    (
      {
        'multihost': True,
        'coordinator': 'one:1',
        'processes': 2,
        'process': 2,
      },
      '--process=2: must be less than --processes=2',
    ),
  ],
)
def test_flags_that_do_not_belong_together(given, message):
  with (
    flagsaver.flagsaver(**given),
    pytest.raises(ValueError, match=message),
  ):
    devices.cluster()
