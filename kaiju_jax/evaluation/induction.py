"""Initializes a model so that it suggests induction; for the needle only.

A needle takes two heads: one gives each token its predecessor, the other finds
the token whose predecessor is the query's. A small model needs thousands of
steps to find that circuit, whatever its windows. Here it is suggested and then
trained; untrained it guesses among the row's values. So the test measures how
far each layout reaches, not how induction emerges, and every result must say
so. With μ a unit vector, U an orthonormal [D, K] and R a rotation of D, common
to all layers and layouts:

    embeddings     e + μ: what all tokens have in common
    head 0         attends to the previous token: its query, and a part of the
                   key, follow μ only; their rotary phases agree at offset 1
    other heads    look for content: W_q = U, W_k = R·U
    outputs        head 0 writes ½·R·U·Uᵀ x, the others ½·U·Uᵀ x

Keys are read through R, and head 0 writes through R, so that a content head's
query matches the token behind an earlier copy, not the copy itself. `previous`
suggests head 0 alone. The sources have nothing of the kind.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib

# The number of the fastest rotary pairs, which distinguish neighbours.
_FREQUENCIES = 4
_GAIN = 8.0  # Each of these pairs adds it to the previous token's logit.
_OUTPUT = 0.5
_PROJECTIONS = 'w_q_DHK', 'w_k_DK', 'w_v_DK', 'w_o_DHK'


def suggest(params: Any, config: model_config.ModelConfig, seed: int) -> Any:
  """Returns float32 parameters whose attention begins with the circuit above.

  Raises:
    ValueError: the circuit does not fit the model's shape.
  """
  rng = np.random.default_rng(seed)
  mean_D = _check_and_draw(config, rng)
  u_DK = _orthonormal(rng, config.d_model, config.head_dim)
  turn_DD = _orthonormal(rng, config.d_model, config.d_model)

  def rewritten(name, parameter, query_DK, key_DK):
    new = {
      'w_q_DHK': lambda: _heads(query_DK, u_DK, config),
      'w_k_DK': lambda: turn_DD @ u_DK + key_DK,
      'w_v_DK': lambda: u_DK,
      'w_o_DHK': lambda: _OUTPUT * _heads(turn_DD @ u_DK, u_DK, config),
    }[name]()
    return jnp.broadcast_to(
      jnp.asarray(new, parameter.dtype)[None], parameter.shape
    )

  return _rewrite(params, config, mean_D, rewritten)


def previous(params: Any, config: model_config.ModelConfig, seed: int) -> Any:
  """Returns `params` with the previous token suggested to head 0 alone.

  Raises:
    ValueError: the suggestion does not fit the model's shape.
  """
  mean_D = _check_and_draw(config, np.random.default_rng(seed))

  def rewritten(name, parameter, query_DK, key_DK):
    # Parameters have the block's repeats as their first dimension.
    if name == 'w_k_DK':
      return parameter + jnp.asarray(key_DK[None], 'float32')
    if name == 'w_q_DHK':
      query_DK = jnp.asarray(query_DK[None], 'float32')
      return parameter.at[:, :, 0, :].set(query_DK)
    return parameter

  return _rewrite(params, config, mean_D, rewritten)


def _rewrite(params, config, mean_D, rewritten):
  """Adds μ to the embeddings; rewrites projections by head 0's query, key."""

  def apply(path, parameter):
    name = path[-1].key
    if name == 'embedding_DV':
      return parameter + jnp.asarray(mean_D, parameter.dtype)[:, None]
    if name not in _PROJECTIONS:
      return parameter
    query_K, key_K = _previous_token(config, _rotary_base(config, path))
    both = np.outer(mean_D, query_K), np.outer(mean_D, key_K)
    return rewritten(name, parameter, *both)

  return jax.tree_util.tree_map_with_path(apply, params)


def _check_and_draw(config, rng: np.random.Generator) -> np.ndarray:
  """Returns μ, a unit vector, for a model that the circuit fits."""
  if config.num_heads < 2:
    raise ValueError(
      f"model.num_heads={config.num_heads}: init='induction' needs two heads,"
      ' one for the previous token and one for content.'
    )
  if config.num_kv_heads > 1:
    raise ValueError(
      f"model.num_kv_heads={config.num_kv_heads}: init='induction' needs 1,"
      ' because its query heads meet the same keys.'
    )
  if config.head_dim > config.d_model:
    raise ValueError(
      f"model.head_dim={config.head_dim}: init='induction' needs at most"
      f' d_model={config.d_model}: heads start as orthonormal projections.'
    )
  if not config.tied_embedding:
    raise ValueError(
      "model.tied_embedding=False: init='induction' needs True, because the"
      ' embedding reads out what the content heads copy.'
    )
  mean_D = rng.standard_normal(config.d_model)
  return mean_D / np.linalg.norm(mean_D)


def _rotary_base(config: model_config.ModelConfig, path) -> float:
  """Returns the rotary base of the layer that holds a parameter."""
  block = layers_lib.repeating_block(config.layers())
  (name,) = (key.key for key in path if key.key.startswith('layer_'))
  layer = block[int(name.removeprefix('layer_'))]
  return config.rope_global if layer.window is None else config.rope_local


def _previous_token(
  config: model_config.ModelConfig, base: float
) -> tuple[np.ndarray, np.ndarray]:
  """Returns head 0's query and key along μ [K]; zeros without rotary."""
  half = config.head_dim // 2
  query_K, key_K = np.zeros((2, config.head_dim))
  if not base:
    return query_K, key_K
  pairs = np.arange(min(_FREQUENCIES, half))
  angles = base ** (-2.0 * pairs / config.head_dim)
  # e and μ have norm 1, so that the part of a normed input along μ is √(D/2).
  size = (_GAIN * config.head_dim**0.5 / (config.d_model / 2)) ** 0.5
  key_K[pairs] = size
  query_K[pairs] = size * np.cos(angles)
  query_K[half + pairs] = -size * np.sin(angles)
  return query_K, key_K


def _heads(first_DK, others_DK, config: model_config.ModelConfig):
  """Returns [D, H, K]: head 0, then the same weights for each other head."""
  others = [others_DK] * (config.num_heads - 1)
  return np.stack([first_DK, *others], axis=1)


def _orthonormal(rng: np.random.Generator, rows: int, columns: int):
  """Returns [rows, columns] with orthonormal columns, Haar-distributed."""
  q, r = np.linalg.qr(rng.standard_normal((rows, columns)))
  return q * np.sign(np.diag(r))[None, :]
