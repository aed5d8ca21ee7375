"""Bugs that the tests of meshes must see, planted one at a time."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import reference
from kaiju_jax.decoding.device import tables as tables_lib
from kaiju_jax.decoding.device import weights
from kaiju_jax.kernels.paged_decode import partials
from kaiju_jax.model import kv_heads
from kaiju_jax.model import paging
from kaiju_jax.model import weighted
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import collectives
from tests.decoding import mesh_lives
from tests.decoding import toys

pytestmark = pytest.mark.slow

FLOAT = quantization_config.none()


@pytest.fixture(autouse=True)
def split_tokens(monkeypatch):
  mesh_lives.split_tokens(monkeypatch)


with_columns = weights._with_columns
own_stripe, combine = tables_lib._own_stripe, partials.combine
moments = collectives.moments


def shifted(x_BM, pool):
  return own_stripe(jnp.roll(x_BM, pool.slots, axis=1), pool)


def first_slots(x_BM, pool):
  return x_BM[:, : x_BM.shape[1] // pool.stripes]


class OthersPositions:
  """Every third call, that of positions, takes other slots."""

  def __init__(self, take):
    self.take, self.calls = take, 0

  def __call__(self, x_BM, pool):
    self.calls += 1
    return (own_stripe if self.calls % 3 else self.take)(x_BM, pool)


def own_slots(x_PSK, table_BN, pool):
  """Takes the own stripe for that of all devices."""
  rest = [1] * (x_PSK.ndim - 2)
  pages = jnp.tile(x_PSK[table_BN], (1, 1, pool.stripes, *rest))
  return pages.reshape(-1, pool.page, *x_PSK.shape[2:])


def whole_columns(params, devices):
  """Gives each device the sums over all of F."""

  def repeat(w):
    if not isinstance(w, int8.Quantized) or w.columns is None:
      return w
    return w._replace(columns=np.tile(w.columns, devices))

  return jax.tree.map(
    repeat,
    with_columns(params, 1),
    is_leaf=lambda w: isinstance(w, int8.Quantized),
  )


PLANTS = {
  'blind parts weigh one': (partials, 'mark', lambda out, lse: lse, FLOAT),
  'parts are averaged': (
    partials,
    'combine',
    lambda out, lse: (out.mean(axis=0), lse.max(axis=0)),
    FLOAT,
  ),
  'a part is dropped': (
    partials,
    'combine',
    lambda out, lse: combine(out[1:], lse[1:]),
    FLOAT,
  ),
  'stripes are off by one': (tables_lib, '_own_stripe', shifted, FLOAT),
  'positions of another stripe': (
    tables_lib,
    '_own_stripe',
    OthersPositions(shifted),
    FLOAT,
  ),
  'windows mask by whole positions': (
    tables_lib,
    '_own_stripe',
    OthersPositions(first_slots),
    FLOAT,
  ),
  'settling does not gather': (cache_lib, 'gather_pages', own_slots, FLOAT),
  'sums of columns are those of the whole weight': (
    weights,
    '_with_columns',
    whole_columns,
    toys.int8(),
  ),
  'clamped scales are those of a device': (
    collectives,
    'moments',
    lambda mean, largest, letters: (
      moments(mean, largest, letters)[0],
      largest,
    ),
    toys.int8(),
  ),
  'scales are those of a device': (
    collectives,
    'largest',
    lambda x, *_: x,
    toys.int8(clamp_input='none'),
  ),
}


@pytest.mark.parametrize('plant', PLANTS)
def test_a_planted_bug_is_seen(monkeypatch, plant):
  place, name, bug, quantization = PLANTS[plant]
  config = mesh_lives.config(quantization, layout='L0 G1')
  # On one device first, without it.
  mesh_lives.want(config, 'fast', (1,))
  monkeypatch.setattr(place, name, bug)
  got, want = mesh_lives.compare(config, 8, 'fast', (1,))
  moved = np.abs(jax.nn.log_softmax(got) - jax.nn.log_softmax(want)).max(-1)
  assert moved.max() > (1e-5 if quantization is FLOAT else 3e-3)


def test_sums_of_another_order_are_seen_in_the_reference_mode(monkeypatch):
  """Without the sums of codes, each device scales and rounds its own."""
  leave = weighted.Weighted.leave

  def inexact(self, spec, x, w, is_exact=False, **options):
    return leave(self, spec, x, w, **options)

  monkeypatch.setattr(weighted.Weighted, 'leave', inexact)
  config = mesh_lives.config(layout='L0 G1', dtype='bfloat16')
  got, want = mesh_lives.compare(config, 2, 'reference', (1,))
  assert (got != want).any()


def test_sums_in_another_order_on_each_device_are_seen(monkeypatch):
  """As of a ring, which begins with the device's own part."""

  def total(name, x, params):
    axes = params['axes'] if name == 'psum' else params['axis_name']
    parts = jnp.roll(lax.all_gather(x, axes), lax.axis_index(axes), axis=0)
    with monkeypatch.context() as patch:
      patch.setattr(lax, 'all_gather', lambda *_: parts)
      return in_device_order(name, x, params)

  in_device_order = reference._total
  monkeypatch.setattr(reference, '_total', total)
  config = mesh_lives.config(FLOAT, layout='L0 G1')
  one, other = (
    mesh_lives.Life(mesh_lives.decoder(config, 4, 'reference'), widths).run()
    for widths in ((5,), (1,))
  )
  assert (one != other).any()


def test_a_pool_that_each_device_holds_whole_is_seen(monkeypatch):
  """By its size alone: the tokens are right."""
  config = mesh_lives.config(layout='L0 G1')
  want, pools = mesh_lives.want(config, 'reference', (1,)), paging.pools
  monkeypatch.setattr(paging, 'pools', lambda *x, devices, **y: pools(*x, **y))
  monkeypatch.setattr(kv_heads, 'stripes', lambda _: 1)
  life = mesh_lives.Life(mesh_lives.decoder(config, 2, 'reference'), (1,))
  check, life.check = life.check, lambda: None
  np.testing.assert_array_equal(life.run(), want)
  with pytest.raises(AssertionError):
    check()


def test_a_nan_in_a_stripe_reaches_the_row_that_sees_it_alone():
  config = mesh_lives.config(FLOAT, layout='G0')
  tokens_BL = np.ones((2, 5), np.int32)
  found = []
  for is_planted in (False, True):
    decoder = mesh_lives.decoder(config, 8)
    rows = [decoder.open(), decoder.open()]
    for _ in range(4):
      decoder.extend_text(rows, tokens_BL)
    if is_planted:
      kind = decoder.cache.kinds['global']
      page = int(kind.table_RN[rows[0], 0])
      # Device 3 has two slots of each of its pages.
      at = 3 * kind.k[0].shape[0] // 8 + page
      k = kind.k[0].at[at, 1].set(jnp.nan)
      kinds = {'global': kind._replace(k=(k,))}
      decoder._held._cache = decoder.cache._replace(kinds=kinds)
    found.append(np.asarray(decoder.extend_text(rows, tokens_BL)))
  plain, planted = found
  assert np.isnan(planted[0]).all()
  np.testing.assert_array_equal(planted[1], plain[1])
