"""What the compiled step sends, for devices that are not here."""

import functools

from jax import lax
import jax.numpy as jnp
import pytest

from kaiju_jax.aot import audit
from kaiju_jax.aot import build
from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import step
from tests import compiled

MESH = sharding_config.MeshConfig(fsdp=4, tensor=2)
PLACES = [
  pytest.param('cpu_8', marks=pytest.mark.slow),
  *compiled.on('h100_8', 'v5p_128'),
]
# A TPU's compiler takes a minute or more for each.
OTHER_WIRES = [
  pytest.param('h100_8', marks=pytest.mark.aot),
  pytest.param('v5p_128', marks=[pytest.mark.aot, pytest.mark.full]),
]


def _experiment(**quantization):
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=512,
      d_model=256,
      num_heads=4,
      head_dim=32,
      d_ff=768,
      layout='L0 L1',
      window=64,
      remat='layer',
      quantization=quantization_config.QuantizationConfig(
        **{'embedding': 'int8'} | quantization
      ),
    ),
    data=data_config.DataConfig(length=128, batch=4),
  )


def _collectives(place, experiment):
  mesh = mesh_lib.make(MESH, compiled.devices(place)[: MESH.devices])
  program = build.build(
    step.make(experiment, mesh), step.abstract(experiment, mesh)
  )
  assert not program.complaints
  return build.collectives(program, mesh)


@functools.cache
def _of(place, **quantization):
  return _collectives(place, _experiment(**quantization))


def _problems(found):
  return audit.problems(found, _experiment(), MESH)


@pytest.mark.parametrize('place', PLACES)
def test_codes_cross_and_nothing_else(place):
  found = _of(place)
  assert _problems(found) == ()
  assert all(x.is_sure for x in found)
  over_fsdp = {
    (x.kind, x.dtype)
    for x in found
    if x.axes == ('fsdp',) and x.size >= 256 * 32
  }
  assert over_fsdp == {('all-gather', 's8'), ('all-to-all', 'u8')}


@pytest.mark.parametrize('place', OTHER_WIRES)
def test_gradients_are_six_bits(place):
  squinch, floats = (
    sum(
      x.total
      for x in _of(place, **options)
      # A TPU's compiler turns a small reduce-scatter into an all-reduce.
      if x.kind in ('all-to-all', 'all-reduce', 'reduce-scatter')
      and 'fsdp' in ' '.join(x.axes)
      and sum(n > 1 for n in x.shape) > 1
    )
    for options in ({}, {'wire_gradients': 'float'})
  )
  assert 0.3 < squinch / floats <= 0.40


@pytest.mark.parametrize('place', OTHER_WIRES)
def test_float_arms_are_found(place):
  assert _problems(_of(place, wire_gradients='float'))


# A float arm is found on an H100; the gather is planted here.
@pytest.mark.parametrize(
  'place',
  [
    pytest.param('cpu_8', marks=pytest.mark.slow),
    pytest.param('h100_8', marks=[pytest.mark.aot, pytest.mark.full]),
    pytest.param('v5p_128', marks=[pytest.mark.aot, pytest.mark.full]),
  ],
)
def test_a_planted_f32_gather_is_found(place, monkeypatch):
  gathered = collectives.whole

  def planted(x):
    wide = lax.optimization_barrier(x.astype(jnp.float32))
    return lax.optimization_barrier(gathered(wide)).astype(x.dtype)

  monkeypatch.setattr(collectives, 'whole', planted)
  lines = _problems(_collectives(place, _experiment()))
  assert any('a weight in f32' in line for line in lines)
