"""Multi-query attention: H query heads over one head of keys and values.

(`kv_heads.py` supports more than one head of keys and values; `heads.py` makes
queries, keys and values.)

From the sources: MQA everywhere, sliding windows ("currently" without
attention sinks, which they do not call better), keys and values shared by
neighbouring layers of the same kind and stored in int8. A layer that reads
another layer's keys and values has its own query and output projections, and no
key or value projection. Keys are shared after the rotary embedding, as a cache
holds them.

Sinks and sink logits are of other models (`layers.py`). A layer's sink logit is
one float32 per head. It starts from 0, as gpt-oss's starts (normal, deviation
.02): a query that sees n keys of equal logits keeps n/(n+1) of its output. Its
softmax's sum, Z-Reg's lse, holds it; the mean visible logit does not.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp

from kaiju_jax.kernels import softmax
from kaiju_jax.model import context as context_lib
from kaiju_jax.model import heads as heads_lib
from kaiju_jax.model import kv_heads
from kaiju_jax.model import layers
from kaiju_jax.model import past
from kaiju_jax.model import z_reg
from kaiju_jax.quantization import qat
from kaiju_jax.sharding import collectives


class Attention(heads_lib.Heads):
  """One layer's attention, which makes keys and values unless it gets them."""

  layer: layers.Layer  # The layer's window and kind.
  # The quantity that Z-Reg pulls to zero, 'lse' or 'mean_logit'.
  z_target: str = 'lse'

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    key_value: past.KeyValue | None,
    context: context_lib.Context,
  ) -> tuple[jax.Array, past.KeyValue]:
    """Returns the layer's output [B, L, D], and the keys and values it read.

    If devices split the rows, x and the output are this device's part of L.
    The device makes keys and values from that part, and their codes are
    gathered: each device has all keys of its own heads. With a cache, x and
    the output are its part of the chunk's tokens (`collectives.lay_flat`), and
    it makes all keys of its own heads.
    """
    turns = context.turns_of(self.layer)
    x_BLD = self.encode(self.clamp_input(x_BLD, 'D'))
    if context.pasts is not None:
      return self._extend(qat.enter(x_BLD), key_value, context, turns)
    if key_value is None:
      key_value = self.keys_and_values(x_BLD, turns)
    elif self.config.shared != 'both':
      key_value = self._with_own_part(key_value, x_BLD, turns)
    q_BLHK = self.queries(qat.enter(x_BLD), turns)
    heads = kv_heads.here(self.config.num_kv_heads)
    q_BLHK = kv_heads.fold_queries(q_BLHK, heads)
    if self.is_mutable_collection('heads'):
      self.sow('heads', 'q_BLHK', q_BLHK)
      self.sow('heads', 'k_BMK', key_value.k_BMK)
    out_BLHK, lse_BLH = self._attend(q_BLHK, *key_value, context.visibility)
    out_BLHK, lse_BLH = self._add_logit(out_BLHK, lse_BLH, heads)
    reading_BLH = lse_BLH
    if self.z_target == 'mean_logit' or self.is_mutable_collection('readings'):
      mean_BLH = self._mean_logit(q_BLHK, key_value.k_BMK, context.visibility)
      self._read(lse_BLH, mean_BLH, heads)
      if self.z_target == 'mean_logit':
        reading_BLH = mean_BLH
    out_BLHK = z_reg.inject(out_BLHK, reading_BLH, context.z)
    out_BLHK = kv_heads.unfold(out_BLHK, heads)
    return self._output(self.clamp_input(out_BLHK, 'HK')), key_value

  def _extend(self, x_BLD, key_value, context, turns):
    """Returns what `__call__` does for a chunk, of all its tokens x."""
    heads = kv_heads.here(self.config.num_kv_heads)
    rows, L = context.visibility.coordinate_BL.shape
    shape = rows // heads, L
    if key_value is None:
      key_value = self.keys_and_values(x_BLD, turns, shape)
    q_BLHK = collectives.lay_rows(self.queries(x_BLD, turns), shape)
    q_BLHK = kv_heads.fold_queries(q_BLHK, heads)
    cached = context.pasts[self.layer.kv_from]
    if cached is None:
      attended = self._attend(q_BLHK, *key_value, context.visibility)
    else:
      attended = past.attend(
        q_BLHK,
        key_value,
        cached,
        context.visibility,
        **self._keywords(),
        stripes=kv_heads.stripes(self.config.num_kv_heads),
      )
    out_BLHK, lse_BLH = attended
    out_BLHK, _ = self._add_logit(out_BLHK, lse_BLH, heads)
    out_BLHK = collectives.lay_flat(kv_heads.unfold(out_BLHK, heads))
    out_BLHK = self.encode_part(out_BLHK, 'HK', context.is_exact)
    return self._output(out_BLHK, context.is_exact), key_value

  def _with_own_part(self, shared, x_BMD, turns) -> past.KeyValue:
    """Replaces keys or values by own ones; the other weight stays unused."""
    own = self.keys_and_values(x_BMD, turns)
    if self.config.shared == 'keys':
      return past.KeyValue(shared.k_BMK, own.v_BMK)
    return past.KeyValue(own.k_BMK, shared.v_BMK)

  def _attend(self, q_BLHK, k_BMK, v_BMK, visibility):
    return qat.attention(q_BLHK, k_BMK, v_BMK, visibility, **self._keywords())

  def _keywords(self):
    """Returns the arguments of attention with and without a cache."""
    return {
      'window': self.layer.window,
      'sinks': self.layer.sinks,
      'scale': self.config.head_dim**-0.5,
      'qk': self.config.quantization.qk,
      'implementation': self.config.attention or None,
    }

  def _add_logit(self, out_BLHK, lse_BLH, kv_count: int):
    """Adds the layer's sink logits, if it has them, to folded results."""
    if not self.layer.sink_logit:
      return out_BLHK, lse_BLH
    local = collectives.local_shape('H', (self.config.num_heads,))
    logit_H = self.param('sink_logit_H', nn.initializers.zeros_init(), local)
    rows = out_BLHK.shape[0] // kv_count
    logit_BH = jnp.tile(logit_H.reshape(kv_count, -1), (rows, 1))
    return softmax.add_logit(out_BLHK, lse_BLH, logit_BH)

  def _mean_logit(self, q_BLHK, k_BMK, visibility) -> jax.Array:
    """Returns the mean of each query's visible logits.

    Attention with a zero query is uniform over the visible keys. With K as the
    values it returns the mean visible key, the same for every head.
    """
    zero_BLHK = jnp.zeros_like(q_BLHK[:, :, :1])
    mean_key_BLHK, _ = self._attend(zero_BLHK, k_BMK, k_BMK, visibility)
    logit_BLH = jnp.einsum(
      'BLHK,BLK->BLH',
      q_BLHK,
      mean_key_BLHK[:, :, 0],
      preferred_element_type=jnp.float32,
    )
    return logit_BLH * self.config.head_dim**-0.5

  def _read(self, lse_BLH, mean_BLH, kv_count: int) -> None:
    """Stores means over heads, [B, L], in 'readings', for evaluations."""
    for name, x_BLH in ('lse', lse_BLH), ('mean_logit', mean_BLH):
      x_BLH = kv_heads.unfold(x_BLH[..., None], kv_count)[..., 0]
      square_BL = jnp.mean(jnp.square(x_BLH), axis=-1)
      self.sow('readings', name, collectives.mean(square_BL, 'H'))

  def _output(self, out_BLHK, is_exact=False):
    """Returns this device's part of L of the layer's output."""
    config = self.config
    shape = (config.d_model, config.num_heads, config.head_dim)
    w_o_DHK = self.weight('w_o_DHK', shape)
    return self.leave('BLHK,DHK->BLD', out_BLHK, w_o_DHK, is_exact)
