"""Replicas that never part, damage that is found, and bytes on the wire."""

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from kaiju_jax.sharding import rules
from kaiju_jax.wire import checksum
from kaiju_jax.wire import ternary
from kaiju_jax.wire import ternary_plan
from tests import meshes

DEVICES = PartitionSpec(('fsdp', 'tensor'))
LEAST = 0.004
EVENTS = 4


def shapes():
  return {
    'feedforward': {'w_in_DF': (2, 16, 8), 'w_out_DF': (2, 16, 8)},
    'attention': {'w_q_DHK': (16, 8, 3), 'w_o_DHK': (2, 16, 8, 2)},
    'gain_D': (16,),
  }


def walk(steps, seed=0):
  """Masters [steps, …] that swell and shrink, some faster than codes can."""
  rng = np.random.default_rng(seed)
  time = np.arange(steps)

  def of(shape):
    w = rng.standard_normal(shape)
    wander = np.cumsum(rng.normal(0, 0.01, (steps, *shape)), axis=0)
    phase = rng.uniform(0, 6.28, shape[-1])
    turn = (time * 6.28 / 300)[:, None] + phase
    swell = np.exp(1.3 * np.sin(turn)).reshape(
      steps, *(1,) * (len(shape) - 1), shape[-1]
    )
    return ((w + wander) * swell).astype(np.float32)

  return jax.tree.map(of, shapes(), is_leaf=lambda x: isinstance(x, tuple))


def at(masters, index):
  return jax.tree.map(lambda x: x[index], masters)


def plan_of(params, **settings):
  settings = {'least_scale': LEAST, 'events_every': EVENTS, **settings}
  return ternary.Plan(ternary_plan.layouts(params), **settings)


def stored(params, stacked=0):
  """Specs of masters; `stacked` leading dimensions beside the name's."""

  def of(path, x):
    axes = rules.spec(path[-1].key, x.ndim - stacked, rules.STORED)
    return PartitionSpec(*(None,) * stacked, *axes)

  return jax.tree_util.tree_map_with_path(of, params)


def follow(masters, mesh, **settings):
  """Runs the updates: the last state, and what each device saw each step."""
  first = at(masters, 0)
  count = jax.tree.leaves(masters)[0].shape[0] - 1
  plan = plan_of(first, **settings)

  def local(masters):
    def step(state, index):
      state, report = ternary.update(plan, state, at(masters, index), index)
      return state, (checksum.checksum(jax.tree.leaves(state)), report)

    state = ternary.start(plan, at(masters, 0))
    state, seen = lax.scan(step, state, jnp.arange(1, count + 1))
    return state, jax.tree.map(lambda x: x[None], seen)

  run = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(stored(masters, 1),),
    out_specs=(ternary_plan.specs(plan, first), DEVICES),
    check_vma=False,
  )
  state, (sums, report) = jax.jit(run)(masters)
  return jax.device_get((state, sums, report))


CONTRACTED = {'w_in_DF': -2, 'w_out_DF': -1, 'w_q_DHK': -3, 'w_o_DHK': (-2, -1)}


def by_hand(w_steps, axes, last_scales):
  """One tensor in plain numpy, as if one device had it all."""
  largest = np.abs(w_steps).max(axis=tuple(np.r_[axes]), keepdims=True)
  s = np.maximum(largest[0] / np.float32(96), np.float32(LEAST))
  # Compiled, the division rounds as it likes; what follows is exact.
  first = last_scales * np.exp2(np.round(np.log2(s / last_scales)))
  np.testing.assert_allclose(first, s, rtol=2e-7)
  s = first.astype(np.float32)
  r = np.clip(np.round(w_steps[0] / s), -127, 127).astype(int)
  lag = 0
  for step, (w, top) in enumerate(zip(w_steps[1:], largest[1:]), 1):
    t = np.clip(np.round(w / s), -127, 127).astype(int)
    lag += np.sum(np.abs(t - r) > 1)
    r = r + np.clip(t - r, -1, 1)
    double = (top / s > 120) & (step % EVENTS == 0)
    halve = (top / s < 48) & (s / 2 >= LEAST) & (step % EVENTS == 0)
    r = np.where(double, np.sign(r) * ((np.abs(r) + 1) // 2), r)
    r = np.where(halve, np.clip(2 * r, -127, 127), r)
    s = np.where(double, s * 2, np.where(halve, s / 2, s)).astype(np.float32)
  return r, s, lag


def assert_is_by_hand(state, masters):
  lag = 0
  for module, weights in masters.items():
    if module == 'gain_D':
      continue
    for name, w in weights.items():
      path = f'{module}.{name}'
      r, s, behind = by_hand(w, CONTRACTED[name], state.scales[path])
      assert state.codes[path].dtype == np.int8
      np.testing.assert_array_equal(state.codes[path], r, path)
      np.testing.assert_array_equal(state.scales[path], s, path)
      lag += behind
  return lag


@pytest.mark.slow
def test_replicas_stay_equal_for_a_thousand_steps_and_scale_events():
  masters = walk(1101)
  state, sums, report = follow(masters, meshes.mesh_of(8), check_every=50)
  assert sums.shape == (8, 1100)
  assert np.all(sums == sums[:1])
  assert len(set(sums[0].tolist())) > 1000
  # Every device counts the same events, and there are many of both kinds.
  assert np.all(report.doubled == report.doubled[:1])
  assert report.doubled[0].sum() > 100 and report.halved[0].sum() > 100
  assert not report.resent.any() and not report.damaged.any()
  assert report.lagging.max() > 0
  lag = assert_is_by_hand(state, masters)
  count = sum(r.size for r in state.codes.values())
  assert report.lagging.mean() * count * 1100 == pytest.approx(lag, rel=1e-5)


@pytest.mark.parametrize(
  'fsdp, tensor',
  [
    (1, 1),
    (4, 2),
    pytest.param(2, 4, marks=pytest.mark.slow),
    pytest.param(1, 8, marks=pytest.mark.slow),
  ],
)
def test_the_mesh_does_not_change_the_codes(fsdp, tensor):
  masters = walk(80)
  state, sums, report = follow(
    masters, meshes.mesh_of(fsdp, tensor), check_every=9
  )
  assert_is_by_hand(state, masters)
  sums = sums.reshape(fsdp, tensor, -1)
  assert np.all(sums == sums[:1])
  assert report.doubled.sum() and report.halved.sum()
  assert not report.resent.any()


def test_columns_that_are_cut_come_back_in_place():
  # Two rows an owner would fill two fifths of five planes.
  assert ternary._fold((2, 512)) == (8, 128)
  assert ternary._fold((2, 16, 8, 384)) == (512, 192)
  assert ternary._fold((48, 2, 14_336)) == (384, 3584)
  assert ternary._fold((3, 80, 24_576)) == (240, 24_576)
  rng = np.random.default_rng(0)
  w = np.cumsum(rng.normal(0, 0.01, (30, 16, 512)), axis=0)
  masters = {'module': {'w_in_DF': w.astype(np.float32)}}
  state, _, _ = follow(masters, meshes.mesh_of(8))
  assert_is_by_hand(state, masters)


STRUCK, CHECK, STEPS = 5, 9, 14


def strike(kind, state, received, is_struck):
  """Returns what a device holds and gets, damaged where `is_struck`."""
  path = 'feedforward.w_in_DF'
  if kind == 'delta':
    packed = received.deltas[path]
    other = jnp.where(packed[1, 0, 0] == 0, 1, 0).astype(jnp.uint8)
    byte = jnp.where(is_struck, other, packed[1, 0, 0])
    deltas = {**received.deltas, path: packed.at[1, 0, 0].set(byte)}
    return state, received._replace(deltas=deltas)
  if kind == 'event':
    # All channels double that this byte speaks of.
    events = received.events
    byte = jnp.where(is_struck, 242, events[0, 0]).astype(jnp.uint8)
    return state, received._replace(events=events.at[0, 0].set(byte))
  if kind == 'lost':
    # Bytes that are no trits: five zeros are read instead.
    return state, jax.tree.map(
      lambda x: jnp.where(is_struck, jnp.uint8(255), x), received
    )
  assert kind == 'own codes'
  row = lax.axis_index('fsdp') * 2
  codes = state.codes[path]
  code = codes[0, row, 0] ^ jnp.where(is_struck, 64, 0).astype(jnp.int8)
  codes = {**state.codes, path: codes.at[0, row, 0].set(code)}
  return state._replace(codes=codes), received


def damaged_run(kind, mesh, device):
  """STEPS updates; in step STRUCK one device gets or holds something wrong.

  Returns checksums, `resent` and `damaged` [devices, STEPS].
  """
  masters = walk(STEPS + 1)
  plan = plan_of(at(masters, 0), check_every=CHECK)

  def local(masters):
    here = lax.axis_index(('fsdp', 'tensor'))

    def step(state, index):
      params = at(masters, index)
      is_struck = (here == device) & (index == STRUCK)
      sent, _ = ternary.message(plan, state, params)
      received = ternary.exchange(plan, sent, index)
      state, received = strike(kind, state, received, is_struck)
      state, seen = ternary.receive(plan, state, received)
      state, resent = ternary.heal(plan, state, params, index)
      total = checksum.checksum(jax.tree.leaves(state))
      return state, (total, resent, seen['damaged'])

    state = ternary.start(plan, at(masters, 0))
    _, seen = lax.scan(step, state, jnp.arange(1, STEPS + 1))
    fresh = ternary.start(plan, at(masters, CHECK))
    seen = jax.tree.map(lambda x: x[None], seen)
    return *seen, checksum.checksum(jax.tree.leaves(fresh))[None]

  run = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(stored(masters, 1),),
    out_specs=DEVICES,
    check_vma=False,
  )
  sums, resent, damaged, fresh = jax.device_get(jax.jit(run)(masters))
  np.testing.assert_array_equal(sums[:, CHECK - 1], fresh)
  return sums, resent, damaged


@pytest.mark.parametrize(
  'kind',
  [
    'lost',
    'own codes',
    pytest.param('delta', marks=pytest.mark.slow),
    pytest.param('event', marks=pytest.mark.slow),
  ],
)
def test_damage_is_found_at_the_next_checksum_and_healed(kind):
  sums, resent, damaged = damaged_run(kind, meshes.mesh_of(8), device=3)
  agree = np.all(sums == sums[:1], axis=0)
  struck, check = STRUCK - 1, CHECK - 1
  assert agree[:struck].all()
  # It does not heal by itself, and only the one device is wrong.
  assert not agree[struck:check].any()
  others = np.delete(sums, 3, axis=0)
  assert np.all(others == others[:1])
  assert agree[check:].all()
  assert resent.all(axis=0).tolist() == [i == check for i in range(STEPS)]
  assert resent.any(axis=0).tolist() == [i == check for i in range(STEPS)]
  seen = np.argwhere(damaged).tolist()
  assert seen == ([[3, struck]] if kind == 'lost' else [])


def test_damage_in_one_column_is_healed_in_all():
  """A fresh start is collective over both axes: nothing may hang or differ."""
  sums, resent, _ = damaged_run('lost', meshes.mesh_of(4, 2), device=3)
  struck, check = STRUCK - 1, CHECK - 1
  sums = sums.reshape(4, 2, STEPS)
  agree = np.all(sums == sums[:1], axis=0)
  assert agree[0].all()
  assert np.flatnonzero(~agree[1]).tolist() == list(range(struck, check))
  assert np.argwhere(resent).tolist() == [[i, check] for i in range(8)]


def test_layouts_are_read_off_names():
  masters = at(walk(1), 0)
  assert ternary_plan.layouts(masters) == {
    'feedforward.w_in_DF': ternary.Layout(1, (1,), parted=True),
    'feedforward.w_out_DF': ternary.Layout(1, (2,), split=True),
    'attention.w_q_DHK': ternary.Layout(0, (0,), parted=True),
    'attention.w_o_DHK': ternary.Layout(1, (2, 3), split=True),
  }


def test_what_is_no_number_is_reported_by_its_owner():
  masters = walk(3)
  masters['feedforward']['w_in_DF'][1, 0, 6, 2] = np.nan
  masters['attention']['w_q_DHK'][1:, 15, 7, 0] = np.inf
  _, sums, report = follow(masters, meshes.mesh_of(8))
  assert np.argwhere(report.no_number).tolist() == [[3, 0], [7, 0], [7, 1]]
  assert np.all(sums == sums[:1])


@pytest.mark.parametrize(
  'settings, message',
  [
    ({'least_scale': 0.0}, 'least_scale=0.0: must be positive; grid.no_lag'),
    ({'least_scale': np.inf}, 'least_scale=inf: must be positive'),
    ({'check_every': 0}, 'check_every=0: must be at least 1'),
    ({'events_every': -1}, 'events_every=-1: must be at least 1'),
    ({'layouts': {}}, 'no ternary weights: there is none named w_q_DHK, w_k_'),
  ],
)
def test_a_bad_plan_is_refused(settings, message):
  layouts = {'w': ternary.Layout(0, (0,))}
  with pytest.raises(ValueError, match=message):
    ternary.Plan(**{'layouts': layouts, 'least_scale': 1e-3, **settings})


def test_parameters_that_do_not_fit_the_plan_are_refused():
  masters = at(walk(1), 0)
  plan = plan_of(masters)
  del masters['feedforward']['w_in_DF']
  with pytest.raises(ValueError, match=r'feedforward.w_in_DF is not among att'):
    ternary_plan.weights_of(plan, masters)
  with pytest.raises(ValueError, match=r"'w_in_DF' names 2 .* tensor has 4"):
    ternary_plan.layouts({'w_in_DF': np.zeros((1, 2, 3, 4))})


def test_a_replica_of_other_shards_is_refused():
  params = {'w_in_DF': jnp.zeros((16, 8))}
  plan = plan_of(params)

  def local(params):
    state = ternary.start(plan, params)
    smaller = {'w_in_DF': params['w_in_DF'][:1]}
    return ternary.update(plan, state, smaller, 1)[0]

  run = jax.shard_map(
    local,
    mesh=meshes.mesh_of(8),
    in_specs=(stored(params),),
    out_specs=ternary_plan.specs(plan, params),
    check_vma=False,
  )
  with pytest.raises(ValueError, match=r'w_in_DF: .* 16 rows .* 8 owners .* 1'):
    jax.eval_shape(run, params)
