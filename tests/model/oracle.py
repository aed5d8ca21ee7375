"""The whole model again, written plainly: float fake-quantization, dense masks.

Shares no line with the package but its parameter names: straight-through
rounding by `x + stop_gradient(round(x) - x)`, one loop over the layers, one
dense mask. Slow and obviously right.
"""

import math

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


def rate_of(pair, size, base, scaling):
  """Returns one pair's angle per position."""
  rate = base ** (-2 * pair / size)
  slow = rate / scaling.factor
  length = scaling.original_length
  if scaling.kind == 'linear':
    return slow
  if scaling.kind == 'llama3':
    turns = length * rate / (2 * math.pi)
    kept = (turns - scaling.low) / (scaling.high - scaling.low)
    kept = min(max(kept, 0.0), 1.0)
    return kept * rate + (1 - kept) * slow
  if scaling.kind == 'yarn':
    # Pair i turns length · base^(−2i/K) / 2π times: solved for i.
    first, last = (
      size / 2 * math.log(length / (2 * math.pi * turns)) / math.log(base)
      for turns in (scaling.fast, scaling.slow)
    )
    first = max(math.floor(first), 0)
    last = min(math.ceil(last), size - 1)
    share = min(max((pair - first) / (last - first), 0.0), 1.0)
    return share * slow + (1 - share) * rate
  return rate


def rotate(x_BLHK, position_BL, base, scaling):
  if not base:
    return x_BLHK
  size = x_BLHK.shape[-1]
  rate = np.array([rate_of(i, size, base, scaling) for i in range(size // 2)])
  angle = position_BL[:, :, None, None] * rate[None, None, None]
  first, second = x_BLHK[..., : size // 2], x_BLHK[..., size // 2 :]
  turned = (first + 1j * second) * jnp.exp(1j * angle)
  turned = turned * scaling.attention_factor
  return jnp.concatenate([turned.real, turned.imag], -1).astype(jnp.float32)


def activation(name, x):
  if name == 'swiglu':
    return x / (1 + jnp.exp(-x))
  root = math.sqrt(2 / math.pi)
  return x / 2 * (1 + jnp.tanh(root * (x + 0.044715 * x**3)))


def mask_of(visibility, window, sinks):
  v = visibility
  coordinate = v.coordinate_BL[:, :, None]
  seen = (v.start_BM[:, None] <= coordinate) & (
    coordinate < v.limit_BM[:, None]
  )
  if window is not None:
    age = v.position_BL[:, :, None] - v.position_BM[:, None]
    seen &= np.logical_or(age < window, v.position_BM[:, None] < sinks)
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
  x = embedding.T[tokens_BL]
  x = x * np.sqrt(config.d_model) if config.scaled_embedding else x
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
    is_global = layer.window is None
    base = config.rope_global if is_global else config.rope_local
    base = base if layer.turned else 0
    scaling = config.rope_scaling
    if scaling.layers == 'global' and not is_global:
      scaling = type(scaling)()
    a = p['attention']

    def normed(name, x, p=p):
      if name not in p:
        return x
      return rms_norm(x, p[name]['gain_D'][None, None])

    def biased(name, x, a=a):
      if not config.qkv_bias:
        return x
      (bias,) = (v for k, v in a.items() if k.startswith(f'bias_{name}_'))
      return x + bias.reshape(x.shape[2:])[None, None]

    def turned(name, x, a=a, base=base, scaling=scaling):
      x = biased(name, x)
      gains = [v for k, v in a.items() if k.startswith(f'{name}_gain_')]
      if config.qk_norm == 'head':
        x = rms_norm(x, gains[0][None, None, None])
      elif config.qk_norm == 'all':
        gain = gains[0].reshape(x.shape[2:])[None, None]
        square = jnp.mean(x * x, axis=(2, 3), keepdims=True)
        x = x / jnp.sqrt(square + 1e-6) * gain
      return rotate(x, visibility.position_BL, base, scaling)

    n = cut(normed('attention_norm', x), (-1,))
    query = project('BLD,DHK->BLHK', n, weight(a, 'w_q_DHK', (0,)), (-1,))
    query = turned('q', query)
    if layer.kv_from == index and config.num_kv_heads > 1:
      key = project('BLD,DUK->BLUK', n, weight(a, 'w_k_DUK', (0,)), (-1,))
      key = turned('k', key)
      value = project('BLD,DUK->BLUK', n, weight(a, 'w_v_DUK', (0,)), (-1,))
      value = biased('v', value)
      if q.kv == 'int8':
        key, value = fake_quant(key, (-1,)), fake_quant(value, (-1,))
      # Dense: each query head has its own copy.
      copies = config.num_heads // config.num_kv_heads
      made[index] = *(jnp.repeat(x, copies, axis=2) for x in (key, value)), None
    elif layer.kv_from == index:
      key = project('BLD,DK->BLK', n, weight(a, 'w_k_DK', (0,)), (-1,))
      key = turned('k', key[:, :, None])[:, :, 0]
      value = project('BLD,DK->BLK', n, weight(a, 'w_v_DK', (0,)), (-1,))
      value = biased('v', value)
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
    seen = mask_of(visibility, layer.window, layer.sinks)[:, :, None]
    logits = jnp.where(seen, logits, -1e30)
    any_seen = seen.any(-1, keepdims=True)
    # A sink's logit is that of one more key, whose value is zero.
    if layer.sink_logit:
      sink = a['sink_logit_H'][None, None, :, None]
      sink = jnp.broadcast_to(sink, (*logits.shape[:3], 1))
      logits = jnp.concatenate([logits, sink], -1)
      seen = jnp.concatenate([seen, any_seen], -1)
    weights = jax.nn.softmax(logits, -1)[..., : key.shape[1]] * any_seen
    lse = jax.nn.logsumexp(logits, -1, where=seen)
    z_term = z_term + 0.5 * jnp.sum(jnp.where(any_seen[..., 0], lse, 0) ** 2)
    out = jnp.einsum(f'BLHM,{of_keys}->BLHK', weights, value)
    out = cut(out, (-2, -1))
    w_o = weight(a, 'w_o_DHK', (1, 2))
    out = project('BLHK,DHK->BLD', out, w_o, (-2, -1))
    x = x + normed('attention_out_norm', out)
    f = p['feedforward']
    n = cut(normed('feedforward_norm', x), (-1,))
    w_in = weight(f, 'w_in_DF', (0,))
    h = project('BLD,DF->BLF', n, w_in, (-1,))
    coded = {'largest': 255.0, 'low': 0.0}
    if config.feedforward == 'relu2':
      h = jax.nn.relu(h) ** 2
    else:
      gate = project('BLD,DF->BLF', n, weight(f, 'w_gate_DF', (0,)), (-1,))
      h = activation(config.feedforward, gate) * h
      coded = {}
    limit = None
    if q.clamp_hidden == 'weight_rms':
      gain = p['feedforward_norm']['gain_D']
      variance = config.d_model * jnp.mean(w_in**2) * jnp.mean(gain**2)
      limit = stop(q.clamp_hidden_k * np.sqrt(1.5) * variance)
      h = clip(h, limit)
    elif q.clamp_hidden == 'input_std':
      h = row_clip(h, (-1,), q.clamp_hidden_k)
    w_out = weight(f, 'w_out_DF', (1,))
    out = project('BLF,DF->BLD', h, w_out, (-1,), limit=limit, **coded)
    x = x + normed('feedforward_out_norm', out)
  out = rms_norm(x, params['final_norm']['gain_D'][None, None])
  return out, z_term, virtual - stop(virtual)


def losses(params, config, batch, z_attention, z_logits):
  """Σ weight·CE plus the Z-Reg terms, explicitly, and without them."""
  states, z_term, virtual = hidden(
    params, config, batch.tokens_BL, batch.visibility()
  )
  embedding = params['embedding']
  table = embedding.get('head_DV', embedding['embedding_DV'])
  rows = jnp.arange(states.shape[0])[:, None]
  logits = states[rows, batch.predecessor_BL] @ table
  lse = jax.nn.logsumexp(logits, -1)
  target = jnp.take_along_axis(logits, batch.tokens_BL[..., None], -1)[..., 0]
  bare = jnp.sum(batch.weight_BL * (lse - target))
  z_term = z_attention * z_term
  z_term += z_logits * jnp.sum(batch.weight_BL * 0.5 * lse**2)
  return bare + z_term + virtual, bare
