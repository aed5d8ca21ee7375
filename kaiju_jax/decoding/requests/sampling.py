"""Draws the next token of each row from its logits, by the row's settings.

The filters apply in Hugging Face's order (`transformers`' generate):

    logit[v] is biased and penalized (`penalties.py`)
    depth[v] = (max logit - logit[v]) / temperature
    kept: depth <= limit, the least of these four limits
      top_k  the k-th smallest depth
      top_p  the smallest limit within which exp(-depth) sums to top_p of its
             sum over all that top_k keeps
      min_p  -log(min_p)
      none   ∞
    token = argmax of (Gumbel noise - depth) over what is kept

Temperature 0 takes the largest logit after penalties, the first of equal ones.
Equal logits are kept or cut together: at a tie top_k keeps more than k, as in
Hugging Face's code, and top_p does the same here.

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
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import numbers
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
from jax.extend import random as threefry
import jax.numpy as jnp
import numpy as np

from kaiju_jax.decoding.requests import penalties

_SEEDS = 2**32
_ABOVE_0 = np.nextafter(0, 1), np.finfo(np.float64).max
_COLD = 1e-6, _ABOVE_0[1]
_LAST = penalties.WINDOW
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
  # Of how many last tokens; -1 for all, 0 for none.
  repeat_last_n: int = -1
  # Lowers the logit of a token each time that the reply has drawn it.
  frequency_penalty: float = 0.0
  # Lowers the logit of a token that the reply has drawn.
  presence_penalty: float = 0.0
  # Added to the logits of tokens: {token: bias}, kept as sorted pairs.
  logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
  # DRY: the penalty of a token that would make a repeated sequence longer; 0
  # for none.
  dry_multiplier: float = 0.0
  # It grows so many times by each token more that is repeated.
  dry_base: float = 1.75
  # Length of a repeated sequence whose next token has that penalty.
  dry_allowed_length: int = 2
  # The last tokens in which sequences repeat.
  dry_penalty_last_n: int = penalties.WINDOW
  # Repeated sequences hold no token whose text holds one of them.
  dry_sequence_breakers: Sequence[str] = penalties.BREAKERS

  def __post_init__(self) -> None:
    for name, (least, most, expected) in _LIMITS.items():
      value = getattr(self, name)
      if name in _INTEGERS:
        check_type(name, value, numbers.Integral, 'an integer')
      else:
        check_type(name, value, numbers.Real, 'a number')
      is_greedy = name == 'temperature' and value == 0
      if not (is_greedy or least <= value <= most):
        raise ValueError(f'{name}={value!r}: must be {expected}.')
    for name, check in penalties.CHECKS.items():
      object.__setattr__(self, name, check(getattr(self, name)))

  @property
  def penalizes(self) -> bool:
    """Whether it changes logits before any filter."""
    return penalties.is_used(self)


# By field: the least, the most, and what is right in words.
_LIMITS = {
  'temperature': (*_COLD, f'0 (greedy) or at least {_COLD[0]}, and finite'),
  'top_k': (0, 2**31 - 1, 'at least 0 (0 keeps all)'),
  'top_p': (_ABOVE_0[0], 1, 'above 0 and at most 1 (1 keeps all)'),
  'min_p': (0, 1, 'in 0…1 (0 keeps all)'),
  'repetition_penalty': (*_ABOVE_0, 'above 0 and finite (1 for none)'),
  'seed': (0, _SEEDS - 1, f'in 0…{_SEEDS - 1}'),
  'repeat_last_n': (-1, _LAST, f'in 0…{_LAST}, or -1 (all tokens)'),
  'frequency_penalty': (-2, 2, 'in -2…2 (0 for none)'),
  'presence_penalty': (-2, 2, 'in -2…2 (0 for none)'),
  'dry_multiplier': (0, 100, 'in 0…100 (0 for none)'),
  'dry_base': (1, 100, 'in 1…100'),
  'dry_allowed_length': (1, _LAST, f'in 1…{_LAST}'),
  'dry_penalty_last_n': (0, _LAST, f'in 0…{_LAST}'),
}


class Settings(NamedTuple):
  """The `Sampling` of B rows as arrays, so that a change compiles nothing."""

  temperature_B: Any
  top_k_B: Any
  top_p_B: Any
  min_p_B: Any
  repetition_penalty_B: Any
  seed_B: Any
  repeat_last_n_B: Any
  frequency_penalty_B: Any
  presence_penalty_B: Any
  dry_multiplier_B: Any
  dry_base_B: Any
  dry_allowed_length_B: Any
  dry_penalty_last_n_B: Any
  penalizes_B: Any
  # Tokens, beyond any vocabulary where there is none, and what is added.
  bias_token_BK: Any
  bias_BK: Any


_INTEGERS = {
  x.name for x in dataclasses.fields(Sampling) if isinstance(x.default, int)
}
_DTYPES = {
  **dict.fromkeys(_INTEGERS, np.int32),
  'seed': np.uint32,
  'penalizes': bool,
}


def settings(samplings: Sequence[Sampling]) -> Settings:
  """Returns the settings of one row per `Sampling`; numpy."""
  columns = {
    f'{name}_B': np.array(
      [getattr(one, name) for one in samplings], _DTYPES.get(name, np.float32)
    )
    for name in (*_LIMITS, 'penalizes')
  }
  biases = penalties.pack_biases([one.logit_bias for one in samplings])
  return Settings(**columns, **biases)


def draw(
  logits_BV: jax.Array,
  settings: Settings,
  index_B: jax.Array,
  penalized_BV: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Returns each row's next token and the model's own log-probability of it.

  Args:
    logits_BV: float; -inf rules a token out.
    settings: the B rows' settings, arrays [B].
    index_B: int32, how many tokens stand before the drawn one in its sequence.
    penalized_BV: float32, the logits to draw from (`penalties.apply`); None
      for no penalty at all.

  Returns:
    token_B: int32; -1 where no token can be chosen: a logit is NaN or +inf, or
      all are -inf.
    log_probability_B: float32, from the softmax of `logits_BV` before
      penalties, temperature and filters; NaN where token_B is -1.

  Raises ValueError: names an argument of another shape.
  """
  _check_shapes(logits_BV, settings, index_B=index_B, penalized_BV=penalized_BV)
  logits_BV = logits_BV.astype(jnp.float32)
  if penalized_BV is None:
    penalized_BV = logits_BV
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


def likeliest(x_BV: jax.Array) -> jax.Array:
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
    if name.endswith('_BK'):
      expected = logits_BV.shape[0], penalties.BIASES
    if x is not None and np.shape(x) != expected:
      raise ValueError(
        f'{name} has shape {np.shape(x)}: expected {expected}, as logits_BV'
        ' has rows.'
      )
