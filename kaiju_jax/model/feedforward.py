"""Feed-forward: relu(x·W_in)²·W_out (So et al. 2021), or a gated one.

The gated ones, act(x·W_gate) · (x·W_in) times W_out (Shazeer 2020), come from
other libraries' models. A function of one's own stands in relu²'s place or in
a gate's, and takes and returns float32 (`storage/parts.py`).

The hidden activations of relu² are non-negative and heavy-tailed. They are
coded on all 256 levels, up to a limit that dynamic clamping computes from the
weights. Those of a gate are signed.
"""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp

from kaiju_jax.model import lora
from kaiju_jax.model import weighted
from kaiju_jax.quantization import clamp
from kaiju_jax.quantization import qat
from kaiju_jax.quantization import rotation
from kaiju_jax.storage import parts

# The gates' activations; both libraries' gelu is the approximation by tanh.
_GATES = {
  'swiglu': jax.nn.silu,
  'geglu': functools.partial(jax.nn.gelu, approximate=True),
}


class FeedForward(weighted.Weighted):
  """x_BLD → relu(x·W_in)²·W_out, or (act(x·W_gate) · (x·W_in))·W_out."""

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, gain_D: jax.Array | None, is_exact: bool = False
  ) -> jax.Array:
    """Returns [B, L, D]; `gain_D` is that of the norm that made x, if any.

    If devices split the rows, the result is this device's part of L, as is x.
    `is_exact` is `Weighted.leave`'s.
    """
    config, quantization = self.config, self.config.quantization
    shape = (config.d_model, config.d_ff)
    w_in_DF = self.weight('w_in_DF', shape)
    w_out_DF = self.weight('w_out_DF', shape)
    x_BLD = qat.enter(self.encode(self.clamp_input(x_BLD, 'D')))
    hidden_BLF = self.einsum('BLD,DF->BLF', x_BLD, w_in_DF)
    name = config.feedforward
    gate = _GATES.get(name) or parts.find('GATES', name)
    if name == 'relu2':
      hidden_BLF = jnp.square(nn.relu(hidden_BLF))
    elif gate is None:
      activation = parts.find('ACTIVATIONS', name)
      hidden_BLF = activation(hidden_BLF.astype(jnp.float32))
      hidden_BLF = hidden_BLF.astype(config.dtype)
    else:
      w_gate_DF = self.weight('w_gate_DF', shape)
      gate_BLF = self.einsum('BLD,DF->BLF', x_BLD, w_gate_DF)
      gate_BLF = gate(gate_BLF.astype(jnp.float32))
      hidden_BLF = (gate_BLF * hidden_BLF).astype(config.dtype)
      if self.has_variable('params', rotation.MIX):
        mix_JJ = self.get_variable('params', rotation.MIX)
        hidden_BLF = rotation.mix(hidden_BLF, mix_JJ)
    limit = None
    if quantization.clamp_hidden == 'weight_rms':
      limit = self._hidden_limit(w_in_DF, gain_D)
      hidden_BLF = clamp.clip(hidden_BLF, limit)
    elif quantization.clamp_hidden == 'input_std':
      row_limit = clamp.input_std_limit(
        hidden_BLF, 'F', quantization.clamp_hidden_k, is_exact
      )
      hidden_BLF = clamp.clip(hidden_BLF, row_limit)
    return self.leave(
      'BLF,DF->BLD',
      hidden_BLF,
      w_out_DF,
      is_exact,
      clip_at=limit,
      nonnegative=name == 'relu2',
    )

  def _hidden_limit(self, w_in_DF, gain_D: jax.Array) -> jax.Array:
    """Returns the limit that an export holds, or computes it from weights.

    That of a frozen weight does not follow its adapter.
    """
    if self.has_variable('params', 'hidden_limit'):
      return self.get_variable('params', 'hidden_limit')
    k = self.config.quantization.clamp_hidden_k
    if isinstance(w_in_DF, lora.Adapted):
      w_in_DF = w_in_DF.weight
    return clamp.weight_rms_limit(w_in_DF, gain_D, k)
