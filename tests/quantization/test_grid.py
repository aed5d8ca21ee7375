"""Grids that move by powers of two, and codes that follow by ones."""

import math
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.quantization import grid


def array(*values):
  return jnp.asarray(np.array(values, np.float32))


def test_a_jump_of_five_codes_takes_five_steps():
  codes = jnp.asarray(np.array([10, 0, -3], np.int8))
  w, scales = array(15.2, -1, -3.4), array(1, 1, 1)
  seen = []
  for _ in range(6):
    codes = codes + grid.delta(grid.carry(w, codes, scales))
    seen.append(codes.tolist())
  assert seen == [
    [11, -1, -3],
    [12, -1, -3],
    [13, -1, -3],
    [14, -1, -3],
    [15, -1, -3],
    [15, -1, -3],
  ]


def test_the_carry_holds_what_does_not_fit_in_a_code():
  codes = jnp.asarray(np.array([-127, 127, 0], np.int8))
  carried = grid.carry(array(1e9, -1e9, 0.49), codes, array(1, 1, 1))
  assert carried.tolist() == [254, -254, 0]


def test_events_on_every_code():
  codes = jnp.arange(-127, 128, dtype=jnp.int8)
  events = jnp.zeros(255, jnp.int8)
  scales = jnp.full(255, 0.3, jnp.float32)
  for event, wanted, factor in (
    (0, lambda r: r, 1),
    (grid.DOUBLE, lambda r: int(math.copysign((abs(r) + 1) // 2, r)), 2),
    (grid.HALVE, lambda r: max(-127, min(127, 2 * r)), 0.5),
  ):
    got, scaled = grid.apply(codes, scales, events + jnp.int8(event))
    assert got.dtype == jnp.int8
    assert got.tolist() == [wanted(r) for r in range(-127, 128)]
    assert np.all(np.asarray(scaled) == np.float32(0.3) * np.float32(factor))


def test_codes_are_within_one_of_their_target_after_an_event():
  w = jnp.asarray(np.linspace(-120, 120, 4001, dtype=np.float32))
  one = jnp.ones(4001, jnp.float32)
  for event, largest in ((grid.DOUBLE, 120), (grid.HALVE, 48)):
    inside = jnp.where(jnp.abs(w) <= largest, w, 0.0)
    codes = grid.carry(inside, jnp.zeros(4001, jnp.int8), one).astype(jnp.int8)
    events = jnp.full(4001, event, jnp.int8)
    codes, scales = grid.apply(codes, one, events)
    assert np.max(np.abs(grid.carry(inside, codes, scales))) == 1


def test_which_event_is_called_for():
  largest = array(121, 120, 96, 48, 47, 0)
  events = grid.event(largest, jnp.ones(6, jnp.float32), 0.25)
  assert events.dtype == jnp.int8
  assert events.tolist() == [grid.DOUBLE, 0, 0, 0, grid.HALVE, grid.HALVE]
  # Half a scale of 1 is below the least one.
  events = grid.event(largest, jnp.ones(6, jnp.float32), 0.51)
  assert events.tolist() == [grid.DOUBLE, 0, 0, 0, 0, 0]


def test_no_event_calls_for_its_opposite():
  largest = jnp.asarray(np.geomspace(1, 240, 999, dtype=np.float32))
  scales = jnp.ones(999, jnp.float32)
  first = grid.event(largest, scales, 1e-9)
  _, scales = grid.apply(jnp.zeros(999, jnp.int8), scales, first)
  second = grid.event(largest, scales, 1e-9)
  assert {-1, 0, 1} == set(first.tolist())
  assert np.all(np.asarray(first) * np.asarray(second) >= 0)


def test_how_a_grid_begins():
  scales = grid.first_scale(array(96, 0, 1e-9), 0.5)
  assert scales.tolist() == [1, 0.5, 0.5]
  assert grid.first_scale(array(127), 1e-9, 127).tolist() == [1]


@pytest.mark.parametrize('b2, drawn', [(0.95, 1.16), (0.98, 1.7), (0.999, 7.3)])
def test_adam_moves_no_further(b2, drawn):
  u_max = grid.largest_update(0.9, b2)
  assert u_max == pytest.approx(drawn, rel=0.01)

  def last_update(gradients):
    m = v = 0.0
    for g in gradients:
      m, v = 0.9 * m + 0.1 * g, b2 * v + (1 - b2) * g * g
    t = len(gradients)
    return (m / (1 - 0.9**t)) / math.sqrt(v / (1 - b2**t))

  # The worst gradients of any length grow geometrically.
  found = [
    last_update([(b2 / 0.9) ** t for t in range(steps)])
    for steps in (1, 2, 5, 20, 60, 1000)
  ]
  assert max(found) <= u_max * (1 + 1e-6)
  rng = np.random.default_rng(0)
  for _ in range(20):
    gradients = rng.standard_normal(50) * np.exp(rng.normal(0, 3, 50))
    assert abs(last_update(gradients)) <= u_max


def test_adam_comes_near_its_bound():
  gradients = [(0.98 / 0.9) ** t for t in range(800)]
  m = v = 0.0
  for g in gradients:
    m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
  assert m / math.sqrt(v) == pytest.approx(grid.largest_update(0.9, 0.98), 1e-3)


def test_codes_never_lag_at_the_scale_that_says_so():
  rng = np.random.default_rng(1)
  rate, b1, b2, decay = 1e-2, 0.9, 0.98, 0.1
  scale = grid.no_lag_scale(rate, b1, b2, decay)
  assert scale == pytest.approx(1.7 * rate / (1 - 127e-3), rel=0.01)
  w = rng.uniform(-100 * scale, 100 * scale, 500)
  scales = jnp.full(500, scale, jnp.float32)
  codes = grid.carry(array(*w), jnp.zeros(500, jnp.int8), scales)
  codes = codes.astype(jnp.int8)
  m, v = np.zeros(500), np.zeros(500)
  moved = 0
  for t in range(1, 100):
    # Gradients that grow and turn, so that updates come near their bound.
    g = (b2 / b1) ** (t % 37) * np.sign(np.sin(t / 9 + np.arange(500)))
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    u = (m / (1 - b1**t)) / np.sqrt(v / (1 - b2**t))
    w = w - rate * (u + decay * w)
    carried = grid.carry(array(*w), codes, scales)
    moved += np.sum(np.abs(carried))
    codes = codes + grid.delta(carried)
    assert not np.any(grid.carry(array(*w), codes, scales))
  assert moved > 5000


def test_the_warning_of_lag():
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    assert grid.warn_of_lag(3.5e-3, 2e-3, 0.9, 0.98) == pytest.approx(
      1.03, 0.01
    )
  with pytest.warns(UserWarning, match=r'=0.001: .* by 0.0034 per st'):
    ratio = grid.warn_of_lag(1e-3, 2e-3, 0.9, 0.98)
  assert ratio == pytest.approx(0.294, 0.01)


def test_what_has_no_bound_is_refused():
  with pytest.raises(ValueError, match=r'b1=0.9, b2=0.8: .* b1² < b2 < 1'):
    grid.largest_update(0.9, 0.8)
  with pytest.raises(ValueError, match=r'weight_decay=10.0: .* below 1/127'):
    grid.no_lag_scale(1e-3, 0.9, 0.98, 10.0)
