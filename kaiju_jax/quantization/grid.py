"""Int8 grids for ternary updates: each channel's only doubles or halves.

Ternary updates (`wire/ternary.py`) move a replica's codes r by −1, 0 or 1 per
step, so the grid must stay fixed between events. With the f32 master w and a
channel's scale s:

    target     t = clip(round(w / s), ±127)
    delta      d = clip(t − r, ±1)           and every device does r += d

The difference t − r that remains is the *carry*. It needs no buffer, because
the owner computes it from w and r.

A channel whose weights outgrow the grid or shrink below it changes s by a power
of two, which every device can apply to its codes exactly:

    double  s′ = 2s     r′ = sign(r)·((|r| + 1) » 1)
    halve   s′ = s/2    r′ = clip(2r, ±127)

Our guesses: a channel starts with its largest weight on code 96, doubles above
120 and halves below 48. After a doubling the largest code is above 60, and
after a halving below 96, so that no event causes its opposite.

The finest useful grid: Adam moves a weight by at most u_max · learning rate per
step (`largest_update`), and the codes reach any target that moves by at most
one code per step. So r = t, without carry, while

    s ≥ u_max · learning rate

(Two exceptions pass by themselves: a step of rounding after an event, and a
weight exactly between two codes.)
Bungee's exp(b) multiplies the scale that the forward pass reads, not the grid.
"""

import math
import warnings

import jax
import jax.numpy as jnp

from kaiju_jax.quantization import int8

START_CODE = 96
DOUBLE_ABOVE = 120
HALVE_BELOW = 48

DOUBLE, HALVE = 1, -1


def first_scale(
  largest: jax.Array, least_scale: float, code: int = START_CODE
) -> jax.Array:
  """Returns the scale that puts `largest` on `code`, at least `least_scale`."""
  return jnp.maximum(int8.scale_of(largest, code), least_scale)


def carry(w: jax.Array, codes: jax.Array, scales: jax.Array) -> jax.Array:
  """Returns t − r, int16: the number of codes by which a replica is behind."""
  target = int8.encode(w, scales)
  return target.astype(jnp.int16) - codes.astype(jnp.int16)


def delta(carried: jax.Array) -> jax.Array:
  """Returns the deltas, int8 trits (−1, 0 or 1), that shrink the carry."""
  return jnp.clip(carried, -1, 1).astype(jnp.int8)


def event(
  largest: jax.Array, scales: jax.Array, least_scale: float
) -> jax.Array:
  """Returns one trit per channel: DOUBLE, HALVE or 0.

  If a channel's weights have several owners, the largest of their trits is the
  event: one owner suffices to double, and all must agree to halve.

  Args:
    largest: the largest |w| of each channel, or of an owner's part of it.
    scales: the channels' scales, in the same shape.
    least_scale: no scale is halved below this.
  """
  size = largest / scales
  can_halve = (size < HALVE_BELOW) & (scales * 0.5 >= least_scale)
  halve = jnp.where(can_halve, HALVE, 0)
  return jnp.where(size > DOUBLE_ABOVE, DOUBLE, halve).astype(jnp.int8)


def apply(
  codes: jax.Array, scales: jax.Array, events: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns codes and scales after one event per channel."""
  size = jnp.abs(codes)
  half = jnp.sign(codes) * ((size >> 1) + (size & 1))
  twice = 2 * codes.astype(jnp.int16)
  twice = jnp.clip(twice, -int8.MAX_CODE, int8.MAX_CODE).astype(jnp.int8)
  codes = jnp.where(
    events == DOUBLE, half, jnp.where(events == HALVE, twice, codes)
  )
  factor = jnp.where(
    events == DOUBLE, 2.0, jnp.where(events == HALVE, 0.5, 1.0)
  )
  return codes, scales * factor


def largest_update(b1: float, b2: float) -> float:
  """Returns the most that Adam moves a weight by, in learning rates.

  By Cauchy and Schwarz, with gradients that grow as (b2/b1)^t:

      u_max = (1 − b1) / √((1 − b2)·(1 − b1²/b2))

  1.16 for b2 = 0.95, 1.70 for 0.98 and 7.27 for 0.999, b1 = 0.9.

  Raises:
    ValueError: Adam's update has no bound with these decays.
  """
  if not (0 <= b1 < 1 and 0 < b2 < 1 and b1 * b1 < b2):
    raise ValueError(
      f"b1={b1}, b2={b2}: Adam's update is bounded for 0 ≤ b1 < 1 and"
      ' b1² < b2 < 1 only.'
    )
  return max(1.0, (1 - b1) / math.sqrt((1 - b2) * (1 - b1 * b1 / b2)))


def no_lag_scale(
  learning_rate: float, b1: float, b2: float, weight_decay: float = 0.0
) -> float:
  """Returns the least scale at which codes always keep up with AdamW.

  Args:
    learning_rate: the peak learning rate.
    b1: Adam's first decay.
    b2: Adam's second decay.
    weight_decay: decoupled; it moves a weight by up to 127 of its codes times
      learning_rate · weight_decay.

  Raises:
    ValueError: see `largest_update`; or the decay moves a weight by a whole
      code per step.
  """
  decay = int8.MAX_CODE * learning_rate * weight_decay
  if decay >= 1:
    raise ValueError(
      f'learning_rate={learning_rate}, weight_decay={weight_decay}: their'
      f' product must be below 1/{int8.MAX_CODE}; otherwise decay alone is'
      ' faster than any grid.'
    )
  return largest_update(b1, b2) * learning_rate / (1 - decay)


def warn_of_lag(
  least_scale: float,
  learning_rate: float,
  b1: float,
  b2: float,
  weight_decay: float = 0.0,
) -> float:
  """Returns least_scale / no_lag_scale; warns if the ratio is below 1.

  Below 1, codes of channels on the finest grids may trail their masters by a
  few steps while the learning rate is at its peak. The other arguments are
  those of `no_lag_scale`.
  """
  needed = no_lag_scale(learning_rate, b1, b2, weight_decay)
  ratio = least_scale / needed
  if ratio < 1:
    warnings.warn(
      f'least_scale={least_scale:.3g}: codes may lag behind the masters,'
      f' because AdamW can move a weight by {needed:.3g} per step'
      f' (learning_rate={learning_rate}, b1={b1}, b2={b2}); codes on a scale of'
      ' at least that never lag.',
      stacklevel=2,
    )
  return ratio
