"""Are sampled targets right on average? z-scores of what a student makes of q̂.

A student with logits z reads the targets q̂ of a token by linear functions: its
loss, and its gradient along a direction r,

    m · lse − Σ_V q̂ · z        Σ_V r · (m · softmax(z) − q̂),        m = Σ_V q̂

Over many draws, the mean of such a function less its value at p, divided by the
standard error of that mean, is a z-score. Without bias it has variance 1, and
the root mean square over 200 tokens is within 1 ± .15 (three standard
deviations).
"""

from collections.abc import Callable
from collections.abc import Iterable
import functools

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.distillation import config as sampling_config
from kaiju_jax.distillation import record
from kaiju_jax.distillation import sample

TOKENS = 200


def teacher(
  tokens: int, vocab_size: int, power: float = 1.0, seed: int = 0
) -> np.ndarray:
  """Returns float64 distributions [N, V] like those of text.

  Ranks have Zipf's frequencies, and each token its own order, its own exponent
  and some noise: some tokens are sure, some open. `power` sharpens all.
  """
  rng = np.random.default_rng(seed)
  exponent_N1 = rng.uniform(0.8, 3.0, (tokens, 1))
  log_NV = -exponent_N1 * np.log(np.arange(1, vocab_size + 1))
  log_NV += 0.5 * rng.normal(size=log_NV.shape)
  p_NV = np.exp(power * rng.permuted(log_NV, axis=1))
  return p_NV / p_NV.sum(axis=1, keepdims=True)


def functions(logits_NV: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
  """Returns what a student reads of q̂, as factors [N, V] of its entries.

  Args:
    logits_NV: the student's.
    seed: what each token's direction is drawn from.
  """
  lse_N1 = np.log(np.exp(logits_NV).sum(axis=1, keepdims=True))
  direction_NV = np.random.default_rng(seed).normal(size=logits_NV.shape)
  softmax_NV = np.exp(logits_NV - lse_N1)
  along_N1 = (direction_NV * softmax_NV).sum(axis=1, keepdims=True)
  return {'gradient': along_N1 - direction_NV, 'loss': lse_N1 - logits_NV}


def rms_z(
  blocks: Iterable[np.ndarray],
  p_NV: np.ndarray,
  factors: dict[str, np.ndarray],
) -> dict[str, float]:
  """Returns the root mean square over tokens of each function's z-scores.

  It is infinite for estimates that are wrong and do not vary.

  Args:
    blocks: estimates [draws, N, V], any number of blocks.
    p_NV: what they should be on average.
    factors: see `functions`.
  """
  count = 0
  total = dict.fromkeys(factors, 0.0)
  squares = dict.fromkeys(factors, 0.0)
  for block in blocks:
    error = block - p_NV
    count += len(block)
    for name, factor_NV in factors.items():
      value = np.sum(error * factor_NV, axis=-1)
      total[name] = total[name] + value.sum(axis=0)
      squares[name] = squares[name] + np.square(value).sum(axis=0)
  found = {}
  for name in factors:
    mean = total[name] / count
    variance = np.maximum(squares[name] / count - mean**2, 0)
    with np.errstate(divide='ignore'):
      z = mean / np.sqrt(variance / (count - 1))
    found[name] = float(np.sqrt(np.mean(z**2)))
  return found


def estimates(
  p_NV: np.ndarray,
  sampling: sampling_config.Sampling,
  draws: int,
  first: int = 0,
  form: record.Form | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns q̂, float64 [draws, N, V], and the entries of each, [draws, N].

  The estimates are those that a student reads: encoded as the store does, and
  decoded again.

  Args:
    p_NV: the distributions.
    sampling: how they are sampled.
    draws: how often.
    first: how many draws came before these.
    form: of the store's records; by default that of `sampling`.
  """
  tokens, vocab_size = p_NV.shape
  form = form or record.form_of(sampling, vocab_size)
  logits_1LV = jnp.log(jnp.asarray(p_NV, jnp.float32))[None]
  number = np.arange(draws * tokens, dtype=np.uint32) + first * tokens
  found = _drawn(logits_1LV, number.reshape(draws, tokens), sampling)
  weights_BLT = found.values_BLT
  if found.counts_BLT is not None:
    weights_BLT = found.counts_BLT
  drawn = record.Targets(
    *(
      np.asarray(x).reshape(-1, x.shape[-1])
      for x in (found.ids_BLT, weights_BLT)
    )
  )
  read = [
    record.decode(record.encode(block, form, (first, number)), form)
    for number, block in enumerate(record.blocks(drawn))
  ]
  ids_NT, values_NT = map(np.concatenate, zip(*read))
  place_NT = ids_NT + vocab_size * np.arange(len(ids_NT))[:, None]
  q = np.bincount(place_NT.ravel(), values_NT.ravel(), draws * p_NV.size)
  return q.reshape(draws, tokens, vocab_size), np.asarray(found.entries_BL)


@functools.partial(jax.jit, static_argnames='sampling')
def _drawn(logits_1LV, number_BL, sampling):
  rows, (length, vocab_size) = len(number_BL), logits_1LV.shape[1:]
  logits_BLV = jnp.broadcast_to(logits_1LV, (rows, length, vocab_size))
  return sample.draw(logits_BLV, number_BL, sampling)


def self_normalized(q: np.ndarray) -> np.ndarray:
  """A mutant: estimates divided by their own sum."""
  return q / q.sum(axis=-1, keepdims=True)


def kth_as_threshold(
  p_NV: np.ndarray, k: int, draws: int, seed: int = 0
) -> np.ndarray:
  """A mutant: Gumbel top-k with the k-th largest for κ, not the one behind."""
  rng = np.random.default_rng(seed)
  raced = np.log(p_NV) + rng.gumbel(size=(draws, *p_NV.shape))
  threshold = np.partition(raced, -k, axis=-1)[..., -k, None]
  weight = p_NV / -np.expm1(-p_NV * np.exp(-threshold))
  return np.where(raced >= threshold, weight, 0.0)


def fewer_points_afterwards(
  many: tuple[np.ndarray, np.ndarray],
  few: tuple[np.ndarray, np.ndarray],
  slots: int,
) -> np.ndarray:
  """A mutant: N = T where the entries that were drawn are more than T."""
  (many_q, entries), (few_q, _) = many, few
  return np.where((entries > slots)[..., None], few_q, many_q)


def mutants(
  p_NV: np.ndarray, draws: int, slots: int, k: int
) -> dict[str, Callable[[int, int], np.ndarray]]:
  """Returns biased methods: (draws, draws before these) → estimates [·, N, V].

  Args:
    p_NV: the distributions.
    draws: N.
    slots: T, below N.
    k: entries of top_k and of Gumbel's methods, but for log8's.
  """
  Sampling = sampling_config.Sampling
  gumbel = Sampling('gumbel', k=k, entries=slots)
  many = Sampling(draws=draws, entries=draws)
  few = Sampling(draws=slots, entries=slots)
  top = Sampling('top_k', k=k, entries=slots)
  two = Sampling('gumbel', k=2, entries=slots)
  log8 = record.Form(p_NV.shape[1], slots, 'log8')
  of = functools.partial(estimates, p_NV)
  return {
    'gumbel, divided by its sum': lambda *block: self_normalized(
      of(gumbel, *block)[0]
    ),
    'gumbel, κ the k-th': functools.partial(kth_as_threshold, p_NV, k),
    'gumbel, k 2, as log8': lambda *block: of(two, *block, form=log8)[0],
    'systematic, N = T afterwards': lambda *block: fewer_points_afterwards(
      of(many, *block), of(few, *block), slots
    ),
    'top_k, renormalized': lambda *block: of(top, *block)[0],
  }
