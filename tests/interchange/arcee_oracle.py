"""An Arcee model in plain numpy, read from a folder by that class's own names.

Written after the equations of `transformers`' modeling_arcee.py (5.23); shares
no line with the package. float64, one sequence.
"""

import json

import numpy as np
import safetensors.numpy


def load(folder):
  """Returns config.json's fields and the tensors of a folder."""
  fields = json.loads((folder / 'config.json').read_text())
  return fields, safetensors.numpy.load_file(folder / 'model.safetensors')


def coded(x, part):
  """Returns what int8 codes with a scale per row keep of x.

  'hidden' is never negative, and has all 256 codes.
  """
  least, most = (0, 255) if part == 'hidden' else (-127, 127)
  largest = np.abs(x).max(-1, keepdims=True)
  scale = np.where(largest > 0, largest, 1) / most
  return np.clip(np.rint(x / scale), least, most) * scale


def plain(x, part):
  return x


def logits(fields, tensors, tokens_L, code=plain):
  """Returns [L, V]; `code` returns what is kept of an operand, by its part."""
  w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
  epsilon = fields['rms_norm_eps']

  def linear(x, name, part='input'):
    return code(x, part) @ code(w[f'{name}.weight'], 'weight').T

  def norm(x, name):
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + epsilon) * w[f'{name}.weight']

  x = code(w['model.embed_tokens.weight'], 'table')[tokens_L]
  for index in range(fields['num_hidden_layers']):
    at = f'model.layers.{index}'
    normed = norm(x, f'{at}.input_layernorm')
    q, k, v = (linear(normed, f'{at}.self_attn.{n}_proj') for n in 'qkv')
    mixed = attention(fields, q, k, v, code)
    x = x + linear(mixed, f'{at}.self_attn.o_proj')
    hidden = linear(
      norm(x, f'{at}.post_attention_layernorm'), f'{at}.mlp.up_proj'
    )
    hidden = np.maximum(hidden, 0) ** 2
    x = x + linear(hidden, f'{at}.mlp.down_proj', 'hidden')
  return linear(norm(x, 'model.norm'), 'lm_head')


def attention(fields, q, k, v, code):
  length, size = len(q), fields['head_dim']
  k, v = (np.split(x, fields['num_key_value_heads'], axis=-1) for x in (k, v))
  copies = fields['num_attention_heads'] // fields['num_key_value_heads']
  rate = fields['rope_parameters']['rope_theta'] ** (
    -np.arange(0, size, 2) / size
  )
  angle = np.arange(length)[:, None] * rate
  heads = []
  for head, start in enumerate(range(0, q.shape[-1], size)):
    # repeat_kv: each head of keys serves the next `copies` heads of queries.
    key = code(turned(k[head // copies], angle), 'key')
    value = code(v[head // copies], 'value')
    scores = turned(q[:, start : start + size], angle) @ key.T
    scores = scores / size**0.5
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    heads.append(scores / scores.sum(-1, keepdims=True) @ value)
  return np.concatenate(heads, -1)


def turned(x, angle):
  """x · cos + rotate_half(x) · sin."""
  first, second = np.split(x, 2, -1)
  cosine, sine = np.cos(angle), np.sin(angle)
  return np.concatenate(
    [first * cosine - second * sine, second * cosine + first * sine], -1
  )
