"""Queries, keys and values: projections, biases, norms, rotation and codes.

The order is projection, bias, RMSNorm, rotary embedding, codes. Biases and the
norms of queries and keys come from other libraries' models; the sources have
neither.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp

from kaiju_jax.model import kv_heads
from kaiju_jax.model import norm
from kaiju_jax.model import past
from kaiju_jax.model import rotary
from kaiju_jax.model import weighted
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import qat
from kaiju_jax.sharding import collectives

Turns = tuple[jax.Array, jax.Array] | None


class Heads(weighted.Weighted):
  """The part of an attention layer that makes queries, keys and values."""

  def queries(self, x_BLD: jax.Array, turns: Turns) -> jax.Array:
    """Returns this device's heads of rotated queries, [B, L, H, K]."""
    config = self.config
    shape = (config.d_model, config.num_heads, config.head_dim)
    w_q_DHK = self.weight('w_q_DHK', shape)
    q_BLHK = self.einsum(
      'BLD,DHK->BLHK', x_BLD, w_q_DHK, dtype=self._dtype_of_sums()
    )
    q_BLHK = self._add_bias('bias_q_HK', q_BLHK, shape[1:])
    q_BLHK = self._normalize('q', q_BLHK, 'HK', shape[1:])
    return rotary.rotate(q_BLHK, turns)

  def keys_and_values(
    self,
    x_BMD: jax.Array | int8.Quantized,
    turns: Turns,
    chunk: tuple[int, int] | None = None,
  ) -> past.KeyValue:
    """Returns the keys and values that this device's queries read.

    Args:
      x_BMD: this device's part of the rows, or all tokens of a chunk.
      turns: cosines and sines of whole rows.
      chunk: B and L of a chunk, None for rows.
    """
    if chunk is None and turns is not None:
      turns = tuple(map(collectives.own_rows, turns))

    def enter(x):
      return qat.enter(x) if chunk is None else _lay_rows(x, chunk)

    if self.config.num_kv_heads > 1:
      return self._several_heads(x_BMD, turns, enter)
    shape = (self.config.d_model, self.config.head_dim)
    w_k_DK = self.weight('w_k_DK', shape)
    w_v_DK = self.weight('w_v_DK', shape)
    dtype = self._dtype_of_sums()
    k_BMK = self.einsum('BMD,DK->BMK', x_BMD, w_k_DK, dtype=dtype)
    k_BMK = self._add_bias('bias_k_K', k_BMK, shape[1:])
    k_BMK = self._normalize('k', k_BMK, 'K', shape[1:])
    k_BMK = rotary.rotate(k_BMK[:, :, None], turns)[:, :, 0]
    v_BMK = self.einsum('BMD,DK->BMK', x_BMD, w_v_DK, dtype=dtype)
    v_BMK = self._add_bias('bias_v_K', v_BMK, shape[1:])
    if self.config.quantization.kv == 'none':
      return past.KeyValue(enter(k_BMK), enter(v_BMK))
    return past.KeyValue(
      enter(self._stored('k', k_BMK)), enter(self._stored('v', v_BMK))
    )

  def _several_heads(self, x_BMD, turns, enter) -> past.KeyValue:
    """Makes U heads and returns those that this device reads, [B·U, M, K]."""
    config = self.config
    shape = (config.d_model, config.num_kv_heads, config.head_dim)
    w_k_DUK = self.weight('w_k_DUK', shape)
    w_v_DUK = self.weight('w_v_DUK', shape)
    dtype = self._dtype_of_sums()
    k_BMUK = self.einsum('BMD,DUK->BMUK', x_BMD, w_k_DUK, dtype=dtype)
    k_BMUK = self._add_bias('bias_k_UK', k_BMUK, shape[1:])
    k_BMUK = self._normalize('k', k_BMUK, 'UK', shape[1:])
    k_BMUK = rotary.rotate(k_BMUK, turns)
    v_BMUK = self.einsum('BMD,DUK->BMUK', x_BMD, w_v_DUK, dtype=dtype)
    v_BMUK = self._add_bias('bias_v_UK', v_BMUK, shape[1:])
    if config.quantization.kv == 'int8':
      k_BMUK, v_BMUK = (qat.quantize_kv(x, None) for x in (k_BMUK, v_BMUK))
    read_here = (kv_heads.own(enter(x)) for x in (k_BMUK, v_BMUK))
    return past.KeyValue(*map(kv_heads.fold_keys, read_here))

  def _stored(self, name: str, x_BMK: jax.Array) -> int8.Quantized:
    if self.config.quantization.kv_scale == 'token':
      return qat.quantize_kv(x_BMK, None)
    # Keys and values of normed inputs start with unit variance, and the largest
    # of a few thousand normal values is about 4.
    start = nn.initializers.constant(4.0)
    limit_K = self.param(f'{name}_limit_K', start, (self.config.head_dim,))
    return qat.quantize_kv(x_BMK, limit_K)

  def _dtype_of_sums(self):
    """Returns float32 if a bias follows, and None for the model's dtype."""
    return jnp.float32 if self.config.qkv_bias else None

  def _add_bias(self, name: str, x: jax.Array, shape) -> jax.Array:
    if not self.config.qkv_bias:
      return x
    letters = name.rpartition('_')[2]
    local = collectives.local_shape(letters, shape)
    bias = self.param(name, nn.initializers.zeros_init(), local)
    return (x + bias[None, None]).astype(self.config.dtype)

  def _normalize(self, stem: str, x: jax.Array, letters: str, shape):
    """Normalizes queries or keys [B, L, …] whose last axes are `letters`."""
    if self.config.qk_norm == 'none':
      return x
    if self.config.qk_norm == 'head':
      letters, shape = 'K', shape[-1:]
    gain = self.param(
      f'{stem}_gain_{letters}',
      nn.initializers.ones_init(),
      collectives.local_shape(letters, shape),
    )
    # All that is normalized together becomes one dimension: sums over one have
    # one order.
    flat = x.reshape(*x.shape[: x.ndim - len(letters)], -1)
    gain = gain.reshape((1,) * (flat.ndim - 1) + (-1,))
    return norm.normalize(flat, gain, self.config.norm_epsilon).reshape(x.shape)


def _lay_rows(x, chunk):
  """Returns keys or values as a chunk's rows; a scale per channel has none."""
  return jax.tree.map(
    lambda x: collectives.lay_rows(x, chunk) if x.ndim > 1 else x, x
  )
