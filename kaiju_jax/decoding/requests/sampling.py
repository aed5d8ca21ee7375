"""Draws the next token of each row from its logits, by the row's settings.

The filters apply in Hugging Face's order (`transformers`' generate):

    logit[v] of a token seen before   → logit / penalty, or · penalty below 0
    depth[v] = (max logit - logit[v]) / temperature
    kept: depth <= limit, the least of these four limits
      top_k  the k-th smallest depth
      top_p  the smallest limit within which exp(-depth) sums to top_p of its
             sum over all that top_k keeps
      min_p  -log(min_p)
      none   ∞
    token = argmax of (Gumbel noise - depth) over what is kept

Temperature 0 takes the largest logit after the penalty, the first of equal
ones. Equal logits are kept or cut together: at a tie top_k keeps more than k,
as in Hugging Face's code, and top_p does the same here.

No limit needs the vocabulary sorted. The bits of non-negative floats are
ordered as the floats are, so a limit is found bit by bit, in 31 sums over the
vocabulary. They are skipped if no row needs them, as is the noise if all rows
are greedy. In a large vocabulary limits are looked up, and tokens raced, among
the likeliest entries alone (`_nearest`), which decide nearly always. Where they
do not suffice, the whole vocabulary is read, with the same results.

The noise is threefry's, with the key (seed, index of the token in its sequence)
and the vocabulary entry as the counter. So a seed gives the same text whatever
else is in the batch and whichever row the sequence has, if the logits are the
same.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import math
import numbers
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
from jax.extend import random as threefry
import jax.numpy as jnp
import numpy as np

_SEEDS = 2**32
_COLDEST = 1e-6
_BITS = 31  # Those that a float32 above 0 uses.
# From so many entries on, the 512 likeliest are read alone. They lie in the 512
# groups of 32 neighbours whose likeliest entries are likeliest.
_LARGE = 32_768
_NEAREST, _GROUP = 512, 32


@dataclasses.dataclass(frozen=True)
class Sampling:
  """The sampling settings of one sequence; by default without any filter.

  Raises TypeError, ValueError: names the field, its value and what is right.
  """

  # Divides the logits; 0 takes the likeliest token.
  temperature: float = 1.0
  # Keeps the k likeliest tokens; 0 for all.
  top_k: int = 0
  # Keeps the likeliest tokens that together have this probability; 1 for all.
  top_p: float = 1.0
  # Keeps tokens with at least this fraction of the likeliest token's
  # probability; 0 for all.
  min_p: float = 0.0
  # Divides the logits of tokens that the sequence holds, prompt included, and
  # multiplies negative ones; 1 for none.
  repetition_penalty: float = 1.0
  # The noise's seed, 0…2³²-1.
  seed: int = 0

  def __post_init__(self):
    for name in ('temperature', 'top_p', 'min_p', 'repetition_penalty'):
      check_type(name, getattr(self, name), numbers.Real, 'a number')
    for name in ('top_k', 'seed'):
      check_type(name, getattr(self, name), numbers.Integral, 'an integer')
    for name, is_right, expected in (
      (
        'temperature',
        self.temperature == 0 or _COLDEST <= self.temperature < math.inf,
        f'0 (greedy) or at least {_COLDEST}, and finite',
      ),
      ('top_k', 0 <= self.top_k < 2**31, 'at least 0 (0 keeps all)'),
      ('top_p', 0 < self.top_p <= 1, 'above 0 and at most 1 (1 keeps all)'),
      ('min_p', 0 <= self.min_p <= 1, 'in 0…1 (0 keeps all)'),
      (
        'repetition_penalty',
        0 < self.repetition_penalty < math.inf,
        'above 0 and finite (1 for none)',
      ),
      ('seed', 0 <= self.seed < _SEEDS, f'in 0…{_SEEDS - 1}'),
    ):
      if not is_right:
        raise ValueError(f'{name}={getattr(self, name)!r}: must be {expected}.')


class Settings(NamedTuple):
  """The `Sampling` of B rows as arrays, so that a change compiles nothing."""

  temperature_B: Any
  top_k_B: Any
  top_p_B: Any
  min_p_B: Any
  repetition_penalty_B: Any
  seed_B: Any


def settings(samplings: Sequence[Sampling]) -> Settings:
  """Returns the settings of one row per `Sampling`; numpy."""

  def column(name, dtype):
    return np.array([getattr(one, name) for one in samplings], dtype)

  return Settings(
    temperature_B=column('temperature', np.float32),
    top_k_B=column('top_k', np.int32),
    top_p_B=column('top_p', np.float32),
    min_p_B=column('min_p', np.float32),
    repetition_penalty_B=column('repetition_penalty', np.float32),
    seed_B=column('seed', np.uint32),
  )


def draw(
  logits_BV: jax.Array,
  settings: Settings,
  index_B: jax.Array,
  seen_BV: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Returns each row's next token and the model's own log-probability of it.

  Args:
    logits_BV: float; -inf rules a token out.
    settings: the B rows' settings, arrays [B].
    index_B: int32, how many tokens stand before the drawn one in its sequence.
    seen_BV: bool, tokens that the sequence holds; None for no penalty at all.

  Returns:
    token_B: int32; -1 where no token can be chosen: a logit is NaN or +inf, or
      all are -inf.
    log_probability_B: float32, from the softmax of `logits_BV` before penalty,
      temperature and filters; NaN where token_B is -1.

  Raises ValueError: names an argument of another shape.
  """
  _check_shapes(logits_BV, settings, index_B=index_B, seen_BV=seen_BV)
  logits_BV = logits_BV.astype(jnp.float32)
  penalized_BV = _penalize(logits_BV, settings, seen_BV)
  greedy_B = likeliest(penalized_BV)

  def drawn():
    depth_BV = _depth(penalized_BV, settings)
    near = _nearest(depth_BV)
    limit_B = _limit(depth_BV, settings, near)
    token_B = _race(depth_BV, limit_B, settings, index_B, near)
    return jnp.where(settings.temperature_B > 0, token_B, greedy_B)

  is_drawn = jnp.any(settings.temperature_B > 0)
  token_B = lax.cond(is_drawn, drawn, lambda: greedy_B)
  chosen_B = jnp.take_along_axis(logits_BV, token_B[:, None], axis=1)[:, 0]
  own_B = chosen_B - jax.nn.logsumexp(logits_BV, axis=-1)
  is_open_B = _has_choice(logits_BV)
  return (
    jnp.where(is_open_B, token_B, -1),
    jnp.where(is_open_B, own_B, jnp.nan),
  )


def _has_choice(logits_BV) -> jax.Array:
  return jnp.isfinite(jnp.max(logits_BV, axis=-1)) & ~jnp.any(
    jnp.isnan(logits_BV), axis=-1
  )


def _penalize(logits_BV, settings, seen_BV) -> jax.Array:
  if seen_BV is None:
    return logits_BV
  penalty_B1 = settings.repetition_penalty_B[:, None]
  lower_BV = jnp.where(
    logits_BV > 0, logits_BV / penalty_B1, logits_BV * penalty_B1
  )
  return jnp.where(seen_BV, lower_BV, logits_BV)


def _depth(logits_BV, settings) -> jax.Array:
  """Returns how far each logit lies below the largest, over the temperature."""
  temperature_B = jnp.where(
    settings.temperature_B > 0, settings.temperature_B, 1.0
  )
  highest_B1 = jnp.max(logits_BV, axis=-1, keepdims=True)
  return (highest_B1 - logits_BV) / temperature_B[:, None]


class _Near(NamedTuple):
  """The likeliest entries of B rows by ascending depth; V and more for none."""

  depth_BC: jax.Array
  entry_BC: jax.Array

  @property
  def bound_B(self) -> jax.Array:
    """The largest depth; every entry of a smaller one is among them."""
    return self.depth_BC[:, -1]


def _nearest(depth_BV) -> _Near | None:
  """Returns the entries of least depth; None of a small vocabulary."""
  rows, vocab_size = depth_BV.shape
  if vocab_size < _LARGE:
    return None
  rest = -vocab_size % _GROUP
  groups = jnp.pad(depth_BV, ((0, 0), (0, rest)), constant_values=jnp.inf)
  groups = groups.reshape(rows, -1, _GROUP)
  # Were an entry of another group nearer than the last that is chosen, its
  # group would be, too.
  _, place = lax.top_k(-groups.min(axis=-1), _NEAREST)
  depth = jnp.take_along_axis(groups, place[..., None], axis=1)
  within = jnp.arange(_GROUP, dtype=jnp.int32)[None, None]
  entry = (place[..., None] * _GROUP + within).reshape(rows, -1)
  negative, place = lax.top_k(-depth.reshape(rows, -1), _NEAREST)
  return _Near(-negative, jnp.take_along_axis(entry, place, axis=1))


def _limit(depth_BV, settings, near: _Near | None) -> jax.Array:
  """Returns the largest depth that each row keeps; ∞ keeps all."""
  rows, vocab_size = depth_BV.shape
  everything_B = jnp.full(rows, jnp.inf)
  is_drawn_B = settings.temperature_B > 0
  is_counted_B = (settings.top_k_B > 0) & (settings.top_k_B < vocab_size)
  is_counted_B &= is_drawn_B
  is_weighed_B = (settings.top_p_B < 1) & is_drawn_B

  def counted():
    def least(depth):
      return _least(
        lambda limit_B: (
          _mask_within(depth, limit_B).sum(-1) >= settings.top_k_B
        ),
        rows,
      )

    if near is None:
      return least(depth_BV)
    last_B = jnp.clip(settings.top_k_B, 1, _NEAREST) - 1
    found_B = _take(near.depth_BC, last_B)
    is_right_B = (settings.top_k_B <= _NEAREST) | ~is_counted_B
    return lax.cond(
      jnp.all(is_right_B), lambda: found_B, lambda: least(depth_BV)
    )

  count_B = lax.cond(jnp.any(is_counted_B), counted, lambda: everything_B)
  count_B = jnp.where(is_counted_B, count_B, jnp.inf)

  def weighed():
    def weigh(depth):
      return jnp.where(depth <= count_B[:, None], jnp.exp(-depth), 0)

    weight_BV = weigh(depth_BV)
    enough_B = settings.top_p_B * weight_BV.sum(-1)

    def is_enough(limit_B):
      inside_BV = _mask_within(depth_BV, limit_B)
      return jnp.where(inside_BV, weight_BV, 0).sum(-1) >= enough_B

    if near is None:
      return _least(is_enough, rows)
    # These sums round in another order than those of all entries, which have
    # the last word.
    mass_BC = jnp.cumsum(weigh(near.depth_BC), axis=-1)
    last_B = (mass_BC < enough_B[:, None]).sum(-1)
    found_B = _take(near.depth_BC, jnp.minimum(last_B, _NEAREST - 1))
    is_right_B = _is_least(is_enough, found_B) | ~is_weighed_B
    return lax.cond(
      jnp.all(is_right_B), lambda: found_B, lambda: _least(is_enough, rows)
    )

  mass_B = lax.cond(jnp.any(is_weighed_B), weighed, lambda: everything_B)
  mass_B = jnp.where(is_weighed_B, mass_B, jnp.inf)
  ratio_B = -jnp.log(settings.min_p_B)
  return jnp.minimum(jnp.minimum(count_B, mass_B), ratio_B)


def _race(depth_BV, limit_B, settings, index_B, near: _Near | None):
  """Returns the kept entry of each row whose noise less its depth is largest.

  Noise is a function of the entry, so that the rest need not be raced.
  """

  def raced(depth, entry):
    noise = _gumbel(settings.seed_B, index_B, entry)
    return jnp.where(depth <= limit_B[:, None], noise - depth, -jnp.inf)

  def of_all():
    entry_BV = lax.broadcasted_iota(jnp.int32, depth_BV.shape, 1)
    return likeliest(raced(depth_BV, entry_BV))

  if near is None:
    return of_all()

  def of_near():
    raced_BC = raced(near.depth_BC, near.entry_BC)
    return _first_of_largest(raced_BC, near.entry_BC, depth_BV.shape[1])

  is_inside_B = (limit_B < near.bound_B) | (settings.temperature_B <= 0)
  return lax.cond(jnp.all(is_inside_B), of_near, of_all)


def likeliest(x_BV) -> jax.Array:
  """Returns the first entry of each row's largest value, int32.

  `jnp.argmax` takes seven times as long on a CPU. A row with NaN has no choice
  (`_has_choice`).
  """
  entry_BV = lax.broadcasted_iota(jnp.int32, x_BV.shape, 1)
  return _first_of_largest(x_BV, entry_BV, x_BV.shape[1])


def _first_of_largest(x_BC, entry_BC, vocab_size: int) -> jax.Array:
  is_largest_BC = x_BC == jnp.max(x_BC, axis=-1, keepdims=True)
  last = vocab_size - 1  # Of a row of NaN.
  return jnp.min(jnp.where(is_largest_BC, entry_BC, last), axis=-1)


def _take(x_BC, place_B) -> jax.Array:
  return jnp.take_along_axis(x_BC, place_B[:, None], axis=1)[:, 0]


def _mask_within(depth_BV, limit_B) -> jax.Array:
  # Bits above those of ∞ read as NaN; a limit of NaN excludes nothing.
  return ~(depth_BV > limit_B[:, None])


def _least(is_enough: Callable[[jax.Array], jax.Array], rows: int) -> jax.Array:
  """Returns each row's smallest limit ≥ 0 that is enough, as all above it."""

  def halve(step, floor_B):
    bit = jnp.int32(1) << (_BITS - 1 - step)
    limit_B = lax.bitcast_convert_type(floor_B + (bit - 1), jnp.float32)
    return jnp.where(is_enough(limit_B), floor_B, floor_B + bit)

  bits_B = lax.fori_loop(0, _BITS, halve, jnp.zeros(rows, jnp.int32))
  return lax.bitcast_convert_type(bits_B, jnp.float32)


def _is_least(is_enough, limit_B) -> jax.Array:
  """Returns whether a limit is enough and the one below it, if any, is not.

  The loop compiles as that of `_least`, so that sums round alike.
  """
  bits_B = lax.bitcast_convert_type(limit_B, jnp.int32)

  def ask(step, enough):
    floor_B = jnp.maximum(bits_B - step, 0)
    limit_B = lax.bitcast_convert_type(floor_B, jnp.float32)
    return enough.at[step].set(is_enough(limit_B))

  enough = lax.fori_loop(0, 2, ask, jnp.zeros((2, *bits_B.shape), bool))
  return enough[0] & (~enough[1] | (bits_B == 0))


def _gumbel(seed_B, index_B, entry_BC) -> jax.Array:
  """Returns Gumbel noise [B, C], a function of seed, index and entry.

  The bits are those that `jax.random.bits` gives a key of both words.
  """

  def bits_of(seed, index, entry_C):
    words = jnp.stack([seed.astype(jnp.uint32), index.astype(jnp.uint32)])
    counter = jnp.stack([jnp.zeros_like(entry_C), entry_C]).astype(jnp.uint32)
    high, low = threefry.threefry_2x32(words, counter)
    return high ^ low

  bits_BC = jax.vmap(bits_of)(
    jnp.asarray(seed_B), jnp.asarray(index_B), entry_BC
  )
  # An unlikely token wins by a tiny u, where all 32 bits count. u = 1 would
  # rule its token out.
  u_BC = (bits_BC.astype(jnp.float32) + 0.5) * 2.0**-32
  return -jnp.log(-jnp.log1p(-jnp.minimum(u_BC, 1 - 2.0**-24)))


def check_type(name: str, value: Any, kind: type, expected: str) -> None:
  """Refuses a value of another kind, or True and False: TypeError."""
  if isinstance(value, bool) or not isinstance(value, kind):
    raise TypeError(f'{name}={value!r}: must be {expected}.')


def _check_shapes(logits_BV, settings, **arrays) -> None:
  if logits_BV.ndim != 2 or not logits_BV.shape[1]:
    raise ValueError(
      f'logits_BV has shape {logits_BV.shape}: expected [B, V], V at least 1.'
    )
  for name, x in (*settings._asdict().items(), *arrays.items()):
    expected = logits_BV.shape[: len(name.rpartition('_')[2])]
    if x is not None and np.shape(x) != expected:
      raise ValueError(
        f'{name} has shape {np.shape(x)}: expected {expected}, as logits_BV'
        ' has rows.'
      )
