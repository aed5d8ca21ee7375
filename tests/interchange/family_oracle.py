"""Every family in plain numpy, by its own fields and tensors' names.

Written after the modeling files of `transformers` 5.23; shares no line with the
package. float64, one sequence, config.json as version 5 writes it.
"""

import math
import types

import numpy as np

from tests.model import oracle

FULL, SLIDING = 'full_attention', 'sliding_attention'


def coded(x, part):
  """Returns what int8 codes with a scale per row keep of x.

  'hidden' is never negative, and has all 256 codes.
  """
  least, most = (0, 255) if part == 'hidden' else (-127, 127)
  largest = np.abs(x).max(-1, keepdims=True)
  scale = np.where(largest > 0, largest, 1) / most
  return np.clip(np.rint(x / scale), least, most) * scale


def logits(fields, tensors, tokens_L, code=lambda x, part: x):
  """Returns [L, V]; `code` returns what is kept of an operand, by its part."""
  w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
  kind = fields['model_type']
  is_gemma, is_olmo = kind.startswith('gemma3'), kind.startswith('olmo')

  def linear(x, name, part='input'):
    product = code(x, part) @ code(w[f'{name}.weight'], 'weight').T
    return product + w.get(f'{name}.bias', 0)

  def norm(x, name):
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    x = x / np.sqrt(mean_square + fields['rms_norm_eps'])
    return x * (w[f'{name}.weight'] + (1 if is_gemma else 0))

  def mlp(x, at):
    up = linear(x, f'{at}.mlp.up_proj')
    if kind == 'arcee':
      hidden = np.maximum(up, 0) ** 2
    else:
      hidden = activation(fields, linear(x, f'{at}.mlp.gate_proj')) * up
    return linear(hidden, f'{at}.mlp.down_proj', 'hidden')

  def attention(x, at, index):
    at = f'{at}.self_attn'
    q, k, v = (linear(x, f'{at}.{n}_proj') for n in 'qkv')
    if is_olmo:
      q, k = norm(q, f'{at}.q_norm'), norm(k, f'{at}.k_norm')
    q, k, v = (heads_of(fields, x) for x in (q, k, v))
    if f'{at}.q_norm.weight' in w and not is_olmo:
      q, k = norm(q, f'{at}.q_norm'), norm(k, f'{at}.k_norm')
    out_LHK = attend(fields, index, q, k, v, code)
    return linear(out_LHK.reshape(len(x), -1), f'{at}.o_proj')

  x = code(w['model.embed_tokens.weight'], 'table')[tokens_L]
  x = x * fields['hidden_size'] ** 0.5 if is_gemma else x
  for index in range(fields['num_hidden_layers']):
    at = f'model.layers.{index}'
    if is_olmo:
      x = x + norm(attention(x, at, index), f'{at}.post_attention_layernorm')
      x = x + norm(mlp(x, at), f'{at}.post_feedforward_layernorm')
      continue
    out = attention(norm(x, f'{at}.input_layernorm'), at, index)
    if is_gemma:
      x = x + norm(out, f'{at}.post_attention_layernorm')
      out = mlp(norm(x, f'{at}.pre_feedforward_layernorm'), at)
      x = x + norm(out, f'{at}.post_feedforward_layernorm')
    else:
      x = x + out
      x = x + mlp(norm(x, f'{at}.post_attention_layernorm'), at)
  x = norm(x, 'model.norm')
  tied = fields['tie_word_embeddings']
  return linear(x, 'model.embed_tokens' if tied else 'lm_head')


def activation(fields, x):
  name = fields.get('hidden_act') or fields['hidden_activation']
  if name == 'silu':
    return x / (1 + np.exp(-x))
  assert name == 'gelu_pytorch_tanh'
  return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def heads_of(fields, x):
  return x.reshape(len(x), -1, fields['head_dim'])


def attend(fields, index, q_LHK, k_MUK, v_MUK, code):
  length, size = len(q_LHK), fields['head_dim']
  types_of_layers = fields.get('layer_types')
  slides = fields['model_type'] == 'mistral'
  if types_of_layers:
    slides = types_of_layers[index] == SLIDING
  if fields.get('no_rope_layers', [1] * 99)[index]:
    cosine, sine = angles(fields, slides, length)
    q_LHK, k_MUK = (turn(x, cosine, sine) for x in (q_LHK, k_MUK))
  k_MUK, v_MUK = code(k_MUK, 'key'), code(v_MUK, 'value')
  copies = q_LHK.shape[1] // k_MUK.shape[1]
  k_MHK, v_MHK = (np.repeat(x, copies, axis=1) for x in (k_MUK, v_MUK))
  scale = fields.get('query_pre_attn_scalar', size) ** -0.5
  scores = np.einsum('lhk,mhk->hlm', q_LHK, k_MHK) * scale
  seen = np.tri(length, dtype=bool)
  if slides and fields['sliding_window']:
    seen &= ~np.tri(length, k=-fields['sliding_window'], dtype=bool)
  scores = np.where(seen, scores, -np.inf)
  scores = np.exp(scores - scores.max(-1, keepdims=True))
  scores /= scores.sum(-1, keepdims=True)
  return np.einsum('hlm,mhk->lhk', scores, v_MHK)


def angles(fields, slides, length):
  rope = fields['rope_parameters']
  rope = rope.get(SLIDING if slides else FULL, rope)
  kind = rope['rope_type']
  factor = rope.get('factor', 1.0)
  scaling = types.SimpleNamespace(
    kind='none' if kind == 'default' else kind,
    factor=factor,
    original_length=rope.get('original_max_position_embeddings'),
    low=rope.get('low_freq_factor'),
    high=rope.get('high_freq_factor'),
    slow=rope.get('beta_slow', 1.0),
    fast=rope.get('beta_fast', 32.0),
  )
  size = fields['head_dim']
  rate = [
    oracle.rate_of(pair, size, rope['rope_theta'], scaling)
    for pair in range(size // 2)
  ]
  angle = np.arange(length)[:, None] * np.array(rate)
  multiplier = 1.0
  if kind == 'yarn':
    multiplier = rope.get('attention_factor', 0.1 * math.log(factor) + 1)
  return np.cos(angle) * multiplier, np.sin(angle) * multiplier


def turn(x, cosine, sine):
  first, second = np.split(x, 2, -1)
  cosine, sine = cosine[:, None], sine[:, None]
  return np.concatenate(
    [first * cosine - second * sine, second * cosine + first * sine], -1
  )
