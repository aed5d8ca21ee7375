"""Per-token numbers that losses need of the logits, computed chunk by chunk.

A row of 8,192 tokens has 2.1 GB of float32 logits over 65,536 entries, and
their gradient is as large. A loss needs only a few numbers per token: the
log-sum-exp, the target token's logit, and Σ q̂_i · z_i over a teacher's entries.
With chunks only these numbers stay, and the backward pass makes the logits
again:

    hidden_BLD            → chunks → logits       → these numbers, [B, L]
    hidden_BLD's gradient ← chunks ← logits again ← their gradients

The head's table is gathered once, outside the loop over chunks, and its
gradient crosses the wire once: each chunk adds to it in float32. If devices
split the vocabulary, each reads its own entries. With chunks the devices
combine their results once, over [B, L], after the loop.

The int8 head's scales are per token, so chunks give the same codes as the whole
row. Only the noise of `input_gradient='int8'` differs, because it is hashed
from an element's place.
"""

from collections.abc import Mapping
import functools
import math
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.model import embedding
from kaiju_jax.model import transformer
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import collectives


class Entries(NamedTuple):
  """A teacher's vocabulary entries for each token, T slots."""

  # int32, 0…V−1 over the whole vocabulary; any in free slots.
  ids_BLT: jax.Array
  values_BLT: jax.Array  # float32, q̂ of each; 0 in free slots.


class Readings(NamedTuple):
  """The numbers that losses need of each token's logits z, float32 [B, L]."""

  lse_BL: jax.Array  # Log Σ exp z.
  target_BL: jax.Array  # Z of the target token.
  # Log Σ exp(z / temperature); None without entries.
  soft_lse_BL: jax.Array | None = None
  # Σ q̂_i · z_i / temperature; None without entries.
  taught_BL: jax.Array | None = None


def read(
  model: transformer.Transformer,
  variables: Mapping[str, Any],
  hidden_BLD: jax.Array,
  tokens_BL: jax.Array,
  *,
  entries: Entries | None = None,
  temperature: float = 1.0,
  chunk: int = 0,
) -> Readings:
  """Computes the logits of hidden states and returns their readings.

  Args:
    model: the transformer.
    variables: the variables of `model.apply`.
    hidden_BLD: the hidden states that predict the tokens, whole rows.
    tokens_BL: int32, the target tokens.
    entries: a teacher's entries for each token; None for none.
    temperature: divides the logits in the readings of a teacher's entries.
    chunk: tokens whose logits are held at a time; 0 for all.
  """
  table_DV = model.apply(variables, method='head')
  one = functools.partial(_read, model.config, temperature=temperature)
  rows = hidden_BLD, tokens_BL, entries
  if chunk:
    found = _by_chunk(one, table_DV, rows, chunk)
  else:
    found = one(table_DV, *rows, letters='V')
  if entries is not None and temperature == 1:
    return found._replace(soft_lse_BL=found.lse_BL)
  return found


def _by_chunk(one, table_DV, rows, chunk: int) -> Readings:
  """Returns the readings of [B, L] rows, the logits made chunk by chunk."""
  shape = rows[1].shape
  count = math.prod(shape)
  wide_DV = jax.tree.map(_widen, table_DV)

  # XLA cannot merge the forward and backward computations of a loop's body.
  @functools.partial(jax.checkpoint, prevent_cse=False)
  def local(part):
    return one(_in_use(wide_DV, table_DV), *part, letters='')

  cut = functools.partial(_cut, size=min(chunk, count))
  parts = lax.map(local, jax.tree.map(cut, rows))
  found = jax.tree.map(lambda x: x.ravel()[:count].reshape(shape), parts)
  return Readings(*map(_merge, Readings._fields, found))


def _read(
  config, table_DV, hidden_BLD, tokens_BL, entries, *, temperature, letters
) -> Readings:
  """Returns the readings, summed over the devices that split `letters`."""
  logits_BLV = embedding.logits(config, hidden_BLD, table_DV)
  lse_BL = _logsumexp(logits_BLV, letters)
  target_BL1 = _gather_own(logits_BLV, tokens_BL[:, :, None])
  target_BL = collectives.total(target_BL1[:, :, 0], letters)
  if entries is None:
    return Readings(lse_BL, target_BL)
  own_BLT = _gather_own(logits_BLV, entries.ids_BLT) * entries.values_BLT
  taught_BL = jnp.sum(own_BLT, axis=-1) / temperature
  soft_BL = None
  if temperature != 1:
    soft_BL = _logsumexp(logits_BLV / temperature, letters)
  return Readings(
    lse_BL, target_BL, soft_BL, collectives.total(taught_BL, letters)
  )


def _logsumexp(logits_BLV: jax.Array, letters: str) -> jax.Array:
  """Returns the log-sum-exp over entries that `letters` may split."""
  largest_BL1 = collectives.largest(
    lax.stop_gradient(jnp.max(logits_BLV, axis=-1, keepdims=True)), letters
  )
  sum_BL = jnp.sum(jnp.exp(logits_BLV - largest_BL1), axis=-1)
  return jnp.log(collectives.total(sum_BL, letters)) + largest_BL1[..., 0]


def _gather_own(logits_BLV: jax.Array, ids_BLT: jax.Array) -> jax.Array:
  """Returns the logits of entries that this device has, 0 for the others."""
  size = logits_BLV.shape[-1]
  index_BLT = ids_BLT - collectives.first_of('V', size)
  inside_BLT = (index_BLT >= 0) & (index_BLT < size)
  logit_BLT = jnp.take_along_axis(
    logits_BLV, jnp.clip(index_BLT, 0, size - 1), axis=-1
  )
  return jnp.where(inside_BLT, logit_BLT, 0)


def _merge(name: str, own_BL: jax.Array | None) -> jax.Array | None:
  """Returns a reading over the whole vocabulary from the devices' own ones."""
  if own_BL is None:
    return None
  if name in ('lse_BL', 'soft_lse_BL'):
    return _logsumexp(own_BL[:, :, None], 'V')
  return collectives.total(own_BL, 'V')


def _cut(x: jax.Array, size: int) -> jax.Array:
  """Returns [B, L, …] as chunks [N, 1, size, …], padded with zeros."""
  flat = x.reshape(-1, *x.shape[2:])
  missing = -len(flat) % size
  flat = jnp.pad(flat, [(0, missing)] + [(0, 0)] * (flat.ndim - 1))
  return flat.reshape(-1, 1, size, *x.shape[2:])


def _widen(x: jax.Array) -> jax.Array:
  """Returns floats in float32, so that chunks' gradients sum in float32."""
  if jnp.issubdtype(x.dtype, jnp.floating):
    return x.astype(jnp.float32)
  return x


def _in_use(wide_DV, table_DV):
  """Returns the table that a chunk's matmul takes."""
  if isinstance(table_DV, int8.Quantized):
    return wide_DV  # No code reads its carrier: only the dtype counts.
  return wide_DV.astype(table_DV.dtype)
