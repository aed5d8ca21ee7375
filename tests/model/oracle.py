"""The whole model again, written plainly: float fake-quantization, dense masks.

Shares no line with the package but its parameter names: straight-through
rounding by `x + stop_gradient(round(x) - x)`, one loop over the layers, one
dense mask. Slow and obviously right.
"""

import jax
import jax.numpy as jnp
import numpy as np

stop = jax.lax.stop_gradient


def fake_quant(x, axes, largest=127.0, limit=None, low=-127.0):
  if limit is None:
    limit = jnp.max(jnp.abs(x), axis=axes, keepdims=True)
  step = stop(jnp.maximum(limit, 1e-30) / largest)
  rounded = jnp.clip(jnp.round(x / step), low, largest) * step
  return x + stop(rounded - x)


def clip(x, limit):
  return jnp.where(jnp.abs(x) <= limit, x, stop(jnp.clip(x, -limit, limit)))


def row_clip(x, axes, k):
  rms = jnp.sqrt(jnp.mean(x * x, axis=axes, keepdims=True))
  return clip(x, stop(k * rms))


def rms_norm(x, gain):
  return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gain


def rotate(x_BLHK, position_BL, base):
  if not base:
    return x_BLHK
  size = x_BLHK.shape[-1]
  rate = base ** (-np.arange(0, size, 2) / size)
  angle = position_BL[:, :, None, None] * rate[None, None, None]
  first, second = x_BLHK[..., : size // 2], x_BLHK[..., size // 2 :]
  turned = (first + 1j * second) * jnp.exp(1j * angle)
  return jnp.concatenate([turned.real, turned.imag], -1).astype(jnp.float32)


def mask_of(visibility, window):
  v = visibility
  coordinate = v.coordinate_BL[:, :, None]
  seen = (v.start_BM[:, None] <= coordinate) & (
    coordinate < v.limit_BM[:, None]
  )
  if window is not None:
    seen &= v.position_BL[:, :, None] - v.position_BM[:, None] < window
  return seen


def hidden(params, config, tokens_BL, visibility, extra_lse=0.0):
  """Returns hidden states, the explicit Z-Reg term Σ lse²/2, and zero.

  The zero has the virtual gradient of the running KV limits.
  """
  q = config.quantization
  int8 = q.matmul == 'int8'

  def weight(group, name, axes):
    w = group[name]
    w = fake_quant(w, axes) if int8 else w
    stem = name[: name.rindex('_')]
    if q.bungee:
      w = w * jnp.exp(group[f'bungee_{stem}'])
    return w

  def project(spec, x, w, axes, **options):
    x = fake_quant(x, axes, **options) if int8 else x
    return jnp.einsum(spec, x, w)

  def cut(x, axes):
    if q.clamp_input == 'none':
      return x
    return row_clip(x, axes, q.clamp_input_k)

  embedding = params['embedding']['embedding_DV']
  x = embedding.T[tokens_BL] * np.sqrt(config.d_model)
  layers = config.layers()
  in_block = len(params['blocks'])
  made = {}
  z_term = 0.0
  virtual = 0.0
  for index, layer in enumerate(layers):
    p = jax.tree.map(
      lambda a, i=index: a[i // in_block],
      params['blocks'][f'layer_{index % in_block}'],
    )
    base = config.rope_global if layer.window is None else config.rope_local
    a = p['attention']
    n = cut(rms_norm(x, p['attention_norm']['gain_D'][None, None]), (-1,))
    query = project('BLD,DHK->BLHK', n, weight(a, 'w_q_DHK', (0,)), (-1,))
    query = rotate(query, visibility.position_BL, base)
    if layer.kv_from == index and config.num_kv_heads > 1:
      key = project('BLD,DUK->BLUK', n, weight(a, 'w_k_DUK', (0,)), (-1,))
      key = rotate(key, visibility.position_BL, base)
      value = project('BLD,DUK->BLUK', n, weight(a, 'w_v_DUK', (0,)), (-1,))
      if q.kv == 'int8':
        key, value = fake_quant(key, (-1,)), fake_quant(value, (-1,))
      # Dense: each query head has its own copy.
      copies = config.num_heads // config.num_kv_heads
      made[index] = *(jnp.repeat(x, copies, axis=2) for x in (key, value)), None
    elif layer.kv_from == index:
      key = project('BLD,DK->BLK', n, weight(a, 'w_k_DK', (0,)), (-1,))
      key = rotate(key[:, :, None], visibility.position_BL, base)[:, :, 0]
      value = project('BLD,DK->BLK', n, weight(a, 'w_v_DK', (0,)), (-1,))
      limits = None, None
      if q.kv_scale == 'channel':
        limits = a['k_limit_K'], a['v_limit_K']
        seen = [jnp.abs(x).max((0, 1)) for x in (key, value)]
        virtual += sum(
          jnp.sum(0.5 * x**2 - x * stop(y)) for x, y in zip(limits, seen)
        )
        limits = [stop(x)[None, None] for x in limits]
        key, value = clip(key, limits[0]), clip(value, limits[1])
      if q.kv == 'int8':
        key = fake_quant(key, (-1,), limit=limits[0])
        value = fake_quant(value, (-1,), limit=limits[1])
      made[index] = key, value, limits[0]
    key, value, limit_K = made[layer.kv_from]
    if q.qk == 'int8' and q.kv_scale == 'channel':
      # The scale of each key channel is folded into the query first.
      scale = stop(limit_K[:, :, None] / 127)
      query = fake_quant(query * scale, (-1,)) / scale
    elif q.qk == 'int8':
      query = fake_quant(query, (-1,))
    # One head of keys and values serves all, or there is one for each.
    of_keys = 'BMK' if key.ndim == 3 else 'BMHK'
    logits = jnp.einsum(f'BLHK,{of_keys}->BLHM', query, key)
    logits = logits / np.sqrt(config.head_dim)
    seen = mask_of(visibility, layer.window)[:, :, None]
    logits = jnp.where(seen, logits, -1e30)
    any_seen = seen.any(-1, keepdims=True)
    weights = jax.nn.softmax(logits, -1) * any_seen
    lse = jax.nn.logsumexp(logits, -1, where=seen)
    z_term = z_term + 0.5 * jnp.sum(jnp.where(any_seen[..., 0], lse, 0) ** 2)
    out = jnp.einsum(f'BLHM,{of_keys}->BLHK', weights, value)
    out = cut(out, (-2, -1))
    w_o = weight(a, 'w_o_DHK', (1, 2))
    x = x + project('BLHK,DHK->BLD', out, w_o, (-2, -1))
    f = p['feedforward']
    gain = p['feedforward_norm']['gain_D']
    n = cut(rms_norm(x, gain[None, None]), (-1,))
    w_in = weight(f, 'w_in_DF', (0,))
    h = jax.nn.relu(project('BLD,DF->BLF', n, w_in, (-1,))) ** 2
    limit = None
    if q.clamp_hidden == 'weight_rms':
      variance = config.d_model * jnp.mean(w_in**2) * jnp.mean(gain**2)
      limit = stop(q.clamp_hidden_k * np.sqrt(1.5) * variance)
      h = clip(h, limit)
    elif q.clamp_hidden == 'input_std':
      h = row_clip(h, (-1,), q.clamp_hidden_k)
    w_out = weight(f, 'w_out_DF', (1,))
    x = x + project(
      'BLF,DF->BLD', h, w_out, (-1,), largest=255.0, limit=limit, low=0.0
    )
  out = rms_norm(x, params['final_norm']['gain_D'][None, None])
  return out, z_term, virtual - stop(virtual)


def loss(params, config, batch, z_attention=0.0, z_logits=0.0):
  """Σ weight·CE plus the Z-Reg terms, explicitly."""
  states, z_term, virtual = hidden(
    params, config, batch.tokens_BL, batch.visibility()
  )
  embedding = params['embedding']
  table = embedding.get('head_DV', embedding['embedding_DV'])
  rows = jnp.arange(states.shape[0])[:, None]
  logits = states[rows, batch.predecessor_BL] @ table
  lse = jax.nn.logsumexp(logits, -1)
  target = jnp.take_along_axis(logits, batch.tokens_BL[..., None], -1)[..., 0]
  per_token = lse - target + z_logits * 0.5 * lse**2
  return jnp.sum(batch.weight_BL * per_token) + z_attention * z_term + virtual
