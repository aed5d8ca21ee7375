"""Arguments of attention, as shapes to compile for."""

import jax
import jax.numpy as jnp

from kaiju_jax.model import presets


def arguments(preset, coded):
  """(arrays, scales, cotangents) of one row of a preset's full length."""
  config = presets.preset(preset)
  L, K = config.max_length, config.head_dim
  H = config.num_heads // presets.MESHES[preset][1]
  shape = jax.ShapeDtypeStruct
  out_BLHK = shape((1, L, H, K), jnp.bfloat16)
  lse_BLH = shape((1, L, H), jnp.float32)
  scale_BM = shape((1, L), jnp.float32)
  dtype = jnp.int8 if coded else jnp.bfloat16
  arrays = [shape((1, L, *rest), dtype) for rest in ((H, K), (K,), (K,))]
  arrays += [shape((1, L), jnp.int32)] * 5
  scales = {'q_scale_BLH': lse_BLH, 'k_scale': scale_BM, 'v_scale': scale_BM}
  cotangents = [out_BLHK, lse_BLH] * 2
  return arrays, scales if coded else {}, cotangents
