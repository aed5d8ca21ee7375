"""The audit of the wire, on collectives that are written out here."""

import math

import pytest

from kaiju_jax.aot import audit
from kaiju_jax.aot.hlo import collectives
from kaiju_jax.data import config as data_config
from kaiju_jax.model import presets
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.training import experiment as experiment_lib

PLACES = [('110b', 64, 8), ('13b', 8, 8)]
# D, H, K, F, V of each preset.
SIZES = {
  '110b': (12_288, 96, 128, 51_200, 65_536),
  '13b': (5120, 40, 128, 24_576, 65_536),
}
BYTES = {'f32': 4, 'bf16': 2, 's8': 1, 'u8': 1}


def _collective(kind, dtype, shape, axes, mesh):
  size = math.prod(shape) * BYTES[dtype]
  return collectives.Collective(
    kind=kind,
    dtype=dtype,
    shape=shape,
    axes=axes,
    group=math.prod(getattr(mesh, axis.split()[0]) for axis in axes),
    times=1,
    result_bytes=size,
    wire_bytes=float(size),
    is_sure=True,
    op_name='planted',
  )


def _matrices(preset, d_width, tensor):
  """Returns a device's shapes where D is split over `d_width`."""
  D, H, K, F, V = SIZES[preset]
  D = D // d_width
  return {
    'q': (D, H // tensor, K),
    'k': (D, K),
    'v': (D, K),
    'o': (D, H // tensor, K),
    'in': (D, F // tensor),
    'out': (D, F // tensor),
    'embedding': (D, V // tensor),
  }


def _experiment(preset, fsdp, **quantization):
  model = presets.preset(preset)
  for name, value in quantization.items():
    setattr(model.quantization, name, value)
  return experiment_lib.Experiment(
    model=model, data=data_config.DataConfig(length=8192, batch=fsdp)
  )


def _problems(planted, place, **quantization):
  preset, fsdp, tensor = place
  mesh = sharding_config.MeshConfig(fsdp, tensor)
  return audit.problems(
    [_collective(*each, mesh) for each in planted],
    _experiment(preset, fsdp, **quantization),
    mesh,
  )


def _reductions(place, dtype='bf16'):
  return [
    ('reduce-scatter', dtype, shape, ('fsdp',))
    for shape in _matrices(*place).values()
  ]


def _gathers(place, dtype='bf16'):
  preset, _, tensor = place
  return [
    ('all-gather', dtype, shape, ('fsdp',))
    for shape in _matrices(preset, 1, tensor).values()
  ]


def _found(planted, place, **quantization):
  return [bool(_problems([each], place, **quantization)) for each in planted]


@pytest.mark.parametrize('place', PLACES)
@pytest.mark.parametrize('dtype', ['bf16', 'f32'])
def test_every_float_matrix_is_found(place, dtype):
  reductions, gathers = _reductions(place, dtype), _gathers(place, dtype)
  assert all(_found(reductions, place))
  assert all(_found(gathers, place))
  permuted = [('collective-permute', *x[1:]) for x in reductions]
  assert all(_found(permuted, place))
  # A compiler may reshape it.
  flat = [
    ('reduce-scatter', dtype, (math.prod(x[2]),), ('fsdp',)) for x in reductions
  ]
  assert all(_found(flat, place))


@pytest.mark.parametrize('place', PLACES)
def test_gradients_and_weights_are_audited_apart(place):
  reductions, gathers = _reductions(place), _gathers(place)
  floats = dict(wire_weights='float')
  assert all(_found(reductions, place, **floats))
  assert not any(_found(gathers, place, **floats))
  floats = dict(wire_gradients='float')
  assert not any(_found(reductions, place, **floats))
  assert all(_found(gathers, place, **floats))
  floats = dict(wire_weights='float', wire_gradients='float')
  assert not any(_found(reductions + gathers, place, **floats))


@pytest.mark.parametrize('place', PLACES)
def test_a_float_embedding_is_gathered_in_float_and_reduced_in_codes(place):
  floats = dict(embedding='none')
  assert _found(_gathers(place), place, **floats) == 6 * [True] + [False]
  assert all(_found(_reductions(place), place, **floats))


@pytest.mark.parametrize('place', PLACES)
def test_a_permutation_is_allowed_where_either_may_be_float(place):
  permuted = [('collective-permute', *x[1:]) for x in _reductions(place)]
  for name in 'wire_weights', 'wire_gradients':
    assert not any(_found(permuted, place, **{name: 'float'}))


@pytest.mark.parametrize('place', PLACES)
def test_what_may_cross(place):
  preset, fsdp, tensor = place
  D, H, K, F, V = SIZES[preset]
  part = 8192 // tensor
  legal = [
    # The sequence.
    ('reduce-scatter', 'bf16', (1, part, D), ('tensor',)),
    ('all-gather', 'bf16', (1, 8192, D), ('tensor',)),
    ('all-gather', 's8', (1, 8192, D), ('tensor',)),
    ('all-gather', 'f32', (1, 8192, 1), ('tensor',)),
    # An owner's gradients of what tensor copies: w_k, w_v and a gain.
    ('all-reduce', 'f32', (D // fsdp, K), ('tensor',)),
    ('all-reduce', 'f32', (D // fsdp,), ('tensor',)),
    # Gains and their gradients.
    ('all-gather', 'f32', (D,), ('fsdp',)),
    ('reduce-scatter', 'f32', (D // fsdp,), ('fsdp',)),
    # Limits and scales.
    ('all-reduce', 'f32', (1, H // tensor, K), ('fsdp',)),
    ('all-reduce', 'f32', (1, F // tensor), ('fsdp',)),
    ('all-reduce', 'f32', (1, V // tensor), ('fsdp',)),
    ('all-gather', 'f32', (D, 1, 1), ('fsdp',)),
    ('all-reduce', 'f32', (), ('fsdp', 'tensor')),
  ]
  for shape in _matrices(preset, 1, tensor).values():
    legal.append(('all-gather', 's8', shape, ('fsdp',)))
    legal.append(('all-to-all', 'u8', (fsdp, 6, *shape), ('fsdp',)))
  assert _problems(legal, place) == ()


def test_copies_are_summed_over_tensor_and_not_gathered():
  place = '13b', 1, 8
  summed = ('all-reduce', 'f32', (5120, 128), ('tensor',))
  assert _problems([summed], place) == ()
  gathered = ('all-gather', 'f32', (5120, 128), ('tensor',))
  assert _problems([gathered], place)


def test_scales_in_the_shape_of_a_shard():
  """At fsdp 128, w_q has as many limits as an owner has numbers of w_k."""
  limits = ('all-reduce', 'f32', (1, 40, 128), ('fsdp',))
  assert _problems([limits], ('13b', 128, 1)) == ()


def test_more_than_a_vector_over_the_whole_mesh_is_found():
  planted = ('all-reduce', 'f32', (2, 12_288), ('fsdp', 'tensor'))
  assert _problems([planted], PLACES[0])


def test_half_of_an_axis_is_audited_as_the_axis():
  place = PLACES[0]
  part = [(*each[:3], ('fsdp (4 of 8)',)) for each in _gathers(place)]
  assert all(_found(part, place))
