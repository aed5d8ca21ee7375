"""The flags of hardware: a mesh, a cluster, an accelerator's environment."""

import os
import subprocess
import types

import jax
import pytest

from kaiju_jax.experiments import hardware_flags
from kaiju_jax.sharding import config
import tpu_gpu_configs

Hardware = hardware_flags.Hardware


@pytest.fixture(autouse=True)
def environment(monkeypatch):
  monkeypatch.setattr(os, 'environ', {})


@pytest.mark.parametrize(
  'fsdp, tensor, widths',
  [(None, None, None), (4, None, (4, 1)), (None, 2, (1, 2)), (4, 2, (4, 2))],
)
def test_the_width_that_is_not_given_is_1(fsdp, tensor, widths):
  mesh = Hardware(fsdp=fsdp, tensor=tensor).prepare()
  assert mesh == (widths and config.MeshConfig(*widths))


@pytest.fixture
def slices(monkeypatch):
  """Stands for tpu_gpu_configs/, with one slice."""
  one = types.SimpleNamespace(
    mesh=config.MeshConfig(8, 2),
    flags={'xla_gpu_ftz': True, 'xla_tpu_y': 3},
    environment={
      'KAIJU_A': 'a',
      'KAIJU_B': 'b',
      'XLA_FLAGS': '--xla_force_host_platform_device_count=2',
    },
  )
  load = {'one': one}.__getitem__
  monkeypatch.setattr(hardware_flags.tpu_gpu_configs, 'load', load)
  return one


def test_an_accelerator_sets_what_the_user_has_not(slices):
  os.environ.update({'KAIJU_B': 'mine', 'XLA_FLAGS': '--xla_gpu_ftz=false'})
  assert Hardware(accelerator='one').prepare() == config.MeshConfig(8, 2)
  assert os.environ['XLA_FLAGS'] == (
    '--xla_force_host_platform_device_count=2'
    ' --xla_gpu_ftz=true --xla_gpu_ftz=false'
  )
  assert os.environ['LIBTPU_INIT_ARGS'] == '--xla_tpu_y=3'
  assert (os.environ['KAIJU_A'], os.environ['KAIJU_B']) == ('a', 'mine')


@pytest.mark.parametrize(
  'planted, named',
  [
    ({'xla_gpu_nope': True}, 'Unknown flag in XLA_FLAGS: --xla_gpu_nope=true'),
    (
      {'xla_gpu_nope': 1, 'xla_nor_this': 2},
      'Unknown flags in XLA_FLAGS: --xla_gpu_nope=1 --xla_nor_this=2',
    ),
    (
      {'xla_gpu_ftz': 'maybe'},
      "Couldn't interpret value maybe for flag xla_",
    ),
  ],
)
def test_flags_that_xla_does_not_take(slices, planted, named):
  slices.flags |= planted
  with pytest.raises(ValueError, match='--accelerator=one: JAX ') as error:
    Hardware(accelerator='one').prepare()
  assert f'JAX {jax.__version__} does not take' in str(error.value)
  assert named in str(error.value)
  assert not {'KAIJU_A', 'XLA_FLAGS', 'LIBTPU_INIT_ARGS'} & set(os.environ)


def test_flags_are_tried_without_the_user_s_and_the_tpu_s(slices):
  """Those are not the accelerator's fault, or for libtpu alone to judge."""
  os.environ['XLA_FLAGS'] = '--xla_of_the_user=1'
  slices.flags |= {'xla_tpu_nope': True}
  Hardware(accelerator='one').prepare()
  assert os.environ['XLA_FLAGS'].endswith(' --xla_of_the_user=1')
  assert '--xla_tpu_nope=true' in os.environ['LIBTPU_INIT_ARGS']


def test_a_trial_without_a_verdict_is_none(slices, monkeypatch):
  def slow(*args, timeout, **kwargs):
    raise subprocess.TimeoutExpired(args, timeout)

  monkeypatch.setattr(subprocess, 'run', slow)
  assert Hardware(accelerator='one').prepare() == config.MeshConfig(8, 2)


def test_the_flags_of_every_slice_are_known(monkeypatch):
  tried = []
  with monkeypatch.context() as patch:
    patch.setattr(hardware_flags, '_try', lambda name, text: tried.append(text))
    for name in tpu_gpu_configs.names():
      mesh = tpu_gpu_configs.load(name).mesh
      assert Hardware(accelerator=name).prepare() == mesh
  # XLA reads every value of a flag that is given twice. One process reads all.
  known = sorted({flag for text in tried for flag in text.split()})
  hardware_flags._try('any', ' '.join(known))
  with pytest.raises(ValueError, match='maybe'):
    hardware_flags._try('any', '--xla_gpu_ftz=maybe --xla_gpu_ftz=true')


def test_widths_go_before_the_accelerator_s(slices):
  mesh = Hardware(accelerator='one', fsdp=16).prepare()
  assert mesh == config.MeshConfig(16, 1)


def test_an_accelerator_that_is_none():
  with pytest.raises(ValueError, match="accelerator='h100_65': must be one of"):
    Hardware(accelerator='h100_65').prepare()


def test_a_cluster():
  from kaiju_jax.sharding import processes

  assert Hardware().cluster() is None
  assert Hardware(multihost=True).cluster() == processes.Cluster()
  given = {'coordinator': 'one:123', 'processes': 4, 'process': 3}
  assert Hardware(multihost=True, **given).cluster() == processes.Cluster(
    'one:123', 4, 3
  )


@pytest.mark.parametrize(
  'given, message',
  [
    ({'multihost': False, 'process': 0}, 'need --multihost'),
    ({'process': 0}, '--coordinator is missing'),
    (
      {'coordinator': 'one', 'processes': 2, 'process': 0},
      '=one: must be',
    ),
    (
      {'coordinator': 'one:1', 'processes': 2, 'process': 2},
      '--process=2: must be less than --processes=2',
    ),
  ],
)
def test_flags_that_do_not_belong_together(given, message):
  with pytest.raises(ValueError, match=message):
    Hardware(**{'multihost': True} | given).cluster()
