"""Draws a few entries of a teacher's distribution, without bias.

From the sources: the teacher's vocabulary is subsampled by Gumbel top-k "while
preserving the expected values of soft targets", offline. They give no number of
entries and no formula. Each method except 'top_k' makes q̂ with E q̂ = p:

    systematic   the points u, u + 1, …, u + N − 1 on N · cumsum(p), with one
                 uniform u < 1 per token; q̂_i = (points in i's interval) / N
    gumbel       keeps i where log p_i + G_i > κ, and divides p_i by the
                 probability of being kept (Horvitz–Thompson):
                 q̂_i = p_i / (1 − exp(−p_i · e^−κ)); κ is the (k + 1)-th
                 largest of a token, or one κ = −log N for all tokens
    multinomial  N independent points; q̂_i = count_i / N (RS-KD,
                 arXiv 2503.16870)
    top_k        the k largest p_i, renormalized: biased, for comparison
    full         all of p, for small vocabularies: the reference

`systematic` is our default. It keeps an entry with probability min(1, N · p_i),
which minimizes the squared error summed over a file, and its q̂ sums to 1.

Each token has T slots. The first two methods may need more for a token:

    systematic   count_i is at least ⌊N · p_i⌋, so that for every u there are at
                 most N − Σ max(0, ⌊N · p_i⌋ − 1) entries. Where this is more
                 than T, the token is drawn with N = T points, which meet at
                 most T entries. The choice depends on p alone, so that the mean
                 stays p; a choice that read the drawn entries would bias it.
    gumbel       κ is at least the (T + 1)-th largest of the token. For an entry
                 that is kept, this is the T-th largest of the others, which
                 does not depend on its own noise: the formula still holds.

The noise is threefry's with the key (seed, token number), so that a token's
entries do not depend on the batch, the row or the device. Points are integers
on a grid of 2⁻³¹, whose sums have no rounding errors; entries below 2⁻³² are
never drawn.
"""

import functools
import math
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.distillation import config as config_lib

_UNIT = 2.0**31


class Sampled(NamedTuple):
  """Entries of B × L distributions."""

  ids_BLT: jax.Array  # int32, ascending; 0 in free slots, which are the last.
  values_BLT: jax.Array  # float32, q̂; 0 in free slots.
  # int32, the points of each entry, whose sum is the token's N; None for
  # methods without points.
  counts_BLT: jax.Array | None
  # int32, how many slots are taken; −1 where the logits are no distribution:
  # one is NaN or +∞, or all are −∞.
  entries_BL: jax.Array


def draw(
  logits_BLV: jax.Array, number_BL: jax.Array, sampling: config_lib.Sampling
) -> Sampled:
  """Returns sampled entries of the softmax of logits / temperature.

  Args:
    logits_BLV: the teacher's logits or log-probabilities at temperature 1,
      whole vocabularies.
    number_BL: for each distribution, the corpus number of the token that it
      predicts, 0…2³²−1.
    sampling: the method and its settings; static under `jax.jit`.

  Raises:
    ValueError: settings that `config.check` refuses, or fewer slots than 'full'
      needs.
  """
  config_lib.check(sampling)
  vocab_size = logits_BLV.shape[-1]
  if sampling.method == 'full' and sampling.entries < vocab_size:
    raise ValueError(
      f'entries={sampling.entries}: must be at least {vocab_size} for'
      " method='full', the size of the vocabulary."
    )
  one = functools.partial(_one, sampling=sampling)
  return jax.vmap(jax.vmap(one))(
    logits_BLV, jnp.asarray(number_BL).astype(jnp.uint32)
  )


def _one(logits_V, number, sampling) -> Sampled:
  logits_V = logits_V.astype(jnp.float32) / sampling.temperature
  words = jnp.stack([jnp.uint32(sampling.seed), number])
  key = jax.random.wrap_key_data(words, impl='threefry2x32')
  method = _METHODS[sampling.method]
  made = method(jax.nn.log_softmax(logits_V), key, sampling)
  is_open = jnp.isfinite(jnp.max(logits_V)) & ~jnp.any(jnp.isnan(logits_V))
  empty = jax.tree.map(jnp.zeros_like, made)._replace(entries_BL=jnp.int32(-1))
  return jax.tree.map(functools.partial(jnp.where, is_open), made, empty)


def _systematic(log_p_V, key, sampling) -> Sampled:
  mass_V = _integers(log_p_V)
  total = jnp.sum(mass_V)
  count = jnp.int32(sampling.draws)
  if sampling.draws > sampling.entries:
    most = _most_entries(mass_V, total, sampling.draws)
    count = jnp.where(most > sampling.entries, sampling.entries, count)
  first = _scale_down(jax.random.bits(key, (), jnp.uint32), total)
  index_N = jnp.arange(sampling.draws, dtype=jnp.uint32)
  points_N = _spread(first, index_N, total, count.astype(jnp.uint32))
  is_point_N = index_N < count
  return _count_met(mass_V, points_N, is_point_N, count, sampling.entries)


def _most_entries(mass_V, total, draws: int) -> jax.Array:
  """Returns the most entries that `draws` spread points can meet."""
  # A step between points is at most this long, so that no quotient is too
  # large.
  step = total // draws + 1
  certain_V = (mass_V // step).astype(jnp.int32)
  spared = jnp.sum(jnp.maximum(certain_V - 1, 0))
  return jnp.minimum(draws - spared, jnp.sum(mass_V > 0))


def _spread(first, index_N, total, count) -> jax.Array:
  """Returns ⌊(index · total + first) / count⌋, in 32 bits."""
  # For first = 0…total − 1 and the indices below count, the numerators are
  # 0…count · total − 1, each once. So each unit of mass is met equally often.
  step, rest = total // count, total % count
  rest_N = index_N * rest + first % count
  return index_N * step + first // count + rest_N // count


def _multinomial(log_p_V, key, sampling) -> Sampled:
  mass_V = _integers(log_p_V)
  bits_N = jax.random.bits(key, (sampling.draws,), jnp.uint32)
  points_N = jnp.sort(_scale_down(bits_N, jnp.sum(mass_V)))
  count = jnp.int32(sampling.draws)
  everyone_N = jnp.ones(sampling.draws, bool)
  return _count_met(mass_V, points_N, everyone_N, count, sampling.entries)


def _integers(log_p_V) -> jax.Array:
  """Returns the distribution in units of 2⁻³¹."""
  return jnp.rint(jnp.exp(log_p_V) * _UNIT).astype(jnp.uint32)


def _scale_down(bits, limit) -> jax.Array:
  """Returns ⌊bits · limit / 2³²⌋: uniform bits become uniform below `limit`."""
  half = jnp.uint32(16)
  low = jnp.uint32(0xFFFF)
  high_bits, low_bits = bits >> half, bits & low
  high_limit, low_limit = limit >> half, limit & low
  middle = high_bits * low_limit + ((low_bits * low_limit) >> half)
  other = low_bits * high_limit + (middle & low)
  return high_bits * high_limit + (middle >> half) + (other >> half)


def _find_met(mass_V, points_N) -> jax.Array:
  """Returns the entry in whose interval each point lies, int32 [N]."""
  # Cumulative sums over blocks of S entries, and within the blocks that points
  # meet: V / S and N · S sums in place of V.
  size = max(1, math.isqrt(len(mass_V) // len(points_N)))
  mass_RS = jnp.pad(mass_V, (0, -len(mass_V) % size)).reshape(-1, size)
  sum_R = jnp.sum(mass_RS, axis=1, dtype=jnp.uint32)
  end_R = jnp.cumsum(sum_R, dtype=jnp.uint32)
  row_N = jnp.searchsorted(end_R, points_N, side='right')
  begin_N = end_R[row_N] - sum_R[row_N]
  end_NS = jnp.cumsum(mass_RS[row_N], axis=1, dtype=jnp.uint32)
  past_NS = end_NS <= (points_N - begin_N)[:, None]
  return (row_N * size + jnp.sum(past_NS, axis=1)).astype(jnp.int32)


def _count_met(mass_V, points_N, is_point_N, count, slots: int) -> Sampled:
  """Returns the entries that ascending points meet, and the points of each."""
  ids_N = _find_met(mass_V, points_N)
  before_N = jnp.concatenate([jnp.full(1, -1, jnp.int32), ids_N[:-1]])
  is_new_N = is_point_N & (ids_N != before_N)
  slot_N = jnp.where(is_point_N, jnp.cumsum(is_new_N) - 1, slots)
  ids_T = jnp.zeros(slots, jnp.int32).at[slot_N].set(ids_N, mode='drop')
  counts_T = jnp.zeros(slots, jnp.int32).at[slot_N].add(1, mode='drop')
  values_T = counts_T / count.astype(jnp.float32)
  return Sampled(ids_T, values_T, counts_T, jnp.sum(is_new_N, dtype=jnp.int32))


def _gumbel(log_p_V, key, sampling) -> Sampled:
  size, most = len(log_p_V), sampling.k or sampling.entries
  raced_V = log_p_V + _gumbel_noise(key, size)
  raced_K, ids_K = lax.top_k(raced_V, min(most + 1, size))
  threshold = raced_K[most] if most < size else jnp.float32(-jnp.inf)
  if not sampling.k:
    threshold = jnp.maximum(threshold, -jnp.log(jnp.float32(sampling.draws)))
  raced_K, ids_K = raced_K[:most], ids_K[:most]
  log_p_K = log_p_V[ids_K]
  kept_K = -jnp.expm1(-jnp.exp(log_p_K - threshold))
  values_K = jnp.exp(log_p_K) / kept_K
  return _ascending(ids_K, values_K, raced_K > threshold, sampling.entries)


def _gumbel_noise(key, size: int) -> jax.Array:
  bits_V = jax.random.bits(key, (size,), jnp.uint32)
  # Unlikely entries win by a tiny u, which needs all 32 bits.
  u_V = (bits_V.astype(jnp.float32) + 0.5) * 2.0**-32
  return -jnp.log(-jnp.log1p(-jnp.minimum(u_V, 1 - 2.0**-24)))


def _top_k(log_p_V, key, sampling) -> Sampled:
  del key
  log_p_K, ids_K = lax.top_k(log_p_V, min(sampling.k, len(log_p_V)))
  values_K = jax.nn.softmax(log_p_K)
  return _ascending(ids_K, values_K, values_K > 0, sampling.entries)


def _full(log_p_V, key, sampling) -> Sampled:
  del key
  ids_V = jnp.arange(len(log_p_V), dtype=jnp.int32)
  values_V = jnp.exp(log_p_V)
  return _ascending(ids_V, values_V, values_V > 0, sampling.entries)


def _ascending(ids_K, values_K, is_kept_K, slots: int) -> Sampled:
  """Returns the entries that are kept, by ascending id, in `slots` slots."""
  order_K = jnp.argsort(jnp.where(is_kept_K, ids_K, jnp.iinfo(jnp.int32).max))
  is_kept_K = is_kept_K[order_K]
  free = (0, slots - len(ids_K))
  return Sampled(
    jnp.pad(jnp.where(is_kept_K, ids_K[order_K], 0), free),
    jnp.pad(jnp.where(is_kept_K, values_K[order_K], 0), free),
    None,
    jnp.sum(is_kept_K, dtype=jnp.int32),
  )


_METHODS = {
  'systematic': _systematic,
  'gumbel': _gumbel,
  'multinomial': _multinomial,
  'top_k': _top_k,
  'full': _full,
}
