"""AdamW in one optax chain, schedules over tokens, and Z-Reg's coefficient.

Bungee scalars have their own rate, no decay and no part in the global-norm clip
(our guess: one scalar's gradient is the sum over a whole matrix, and would
dominate the norm).

The learning rate is an argument of the update, not state of the chain, because
it depends on the tokens that the run has seen, which the step counts.
"""

from collections.abc import Callable
from collections.abc import Sequence
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from kaiju_jax.sharding import rules
from kaiju_jax.training import config as training_config

Schedule = Callable[[jax.Array], jax.Array]

# A running KV limit moves by this fraction of its value per step. (Our guess.)
_LIMIT_RATE = 0.01


def shape_of_rate(
  config: training_config.OptimizerConfig, total_tokens: int
) -> Schedule:
  """Returns the function from tokens to the rate as a fraction of its peak.

  It takes the tokens before a step, in float32: with a warm-up the first step's
  rate is 0.
  """
  tokens = float(total_tokens)
  warmup = config.warmup * tokens
  if config.schedule == 'cosine':
    after = optax.cosine_decay_schedule(1.0, tokens - warmup, config.final)
  elif config.schedule == 'wsd':
    decay = config.decay * tokens
    after = optax.join_schedules(
      [
        optax.constant_schedule(1.0),
        optax.linear_schedule(1.0, config.final, decay),
      ],
      [tokens - warmup - decay],
    )
  else:
    after = optax.constant_schedule(1.0)
  if warmup == 0:
    return after
  return optax.join_schedules(
    [optax.linear_schedule(0.0, 1.0, warmup), after], [warmup]
  )


def rate_of_batch(
  config: training_config.OptimizerConfig, count: jax.Array | int, most: int
) -> jax.Array | float:
  """Returns the rate's factor for a step of `count` of `most` microbatches.

  Adam's best rate grows about with the square root of the batch while it is
  small.
  """
  if config.batch_rate == 'none':
    return 1.0
  return jnp.sqrt(count / most)


def z_reg_coefficient(
  peak: float, schedule: str, rate: jax.Array
) -> jax.Array | float:
  """Returns Z-Reg's coefficient; `rate` is the rate over its peak."""
  return peak * rate if schedule == 'learning_rate' else peak


def scale_by_argument(factor: float) -> optax.GradientTransformationExtraArgs:
  """Returns a transformation that scales updates by −factor · learning_rate.

  `learning_rate` is an argument of its `update`.
  """

  def update(updates, state, params=None, *, learning_rate, **_):
    del params
    step = -factor * learning_rate
    return jax.tree.map(lambda u: step * u, updates), state

  return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def fan_in(name: str, shape: Sequence[int]) -> int | None:
  """Returns how many products each output of a matrix sums.

  It returns None for a parameter that is no projection's weight.

  Args:
    name: the parameter's name, whose letters say which dimensions are summed.
    shape: the whole tensor's shape, with or without a scan's N.
  """
  if name not in rules.CONTRACTED:
    return None
  letters = rules.letters_of(name)
  sizes = dict(zip(letters, shape[-len(letters) :]))
  return math.prod(sizes[letter] for letter in rules.CONTRACTED[name])


def scale_by_width(base: int) -> optax.GradientTransformation:
  """Returns a transformation that scales a matrix's update by base / fan-in.

  Other parameters' updates stay. A step of Adam moves each weight by about the
  rate, all in directions that agree with the input, so an output moves by rate
  × fan-in. If the rate falls as 1 / fan-in, the output moves equally far in
  every width. This is the learning rate's part of μP (Yang et al. 2022) alone:
  initial values, the scale of attention logits and that of the head do not
  change with the width.
  """

  def update(updates, state, params=None):
    del params
    return jax.tree.map(
      lambda u, name: u * (base / (fan_in(name, u.shape) or base)),
      updates,
      names(updates),
    ), state

  return optax.GradientTransformation(optax.init_empty_state, update)


def follow_sign(rate: float) -> optax.GradientTransformation:
  """Returns a transformation that moves a parameter against the sign.

  It moves a positive parameter by `rate` times its value, for running limits
  (`qat.quantize_kv`): the sign of their virtual gradient says on which side of
  the limit the largest value was; its size means nothing.
  """

  def update(updates, state, params):
    return jax.tree.map(
      lambda u, p: -rate * jnp.sign(u) * p, updates, params
    ), state

  return optax.GradientTransformation(optax.init_empty_state, update)


def names(params: Any) -> Any:
  """Returns the tree of each parameter's own name, such as 'w_in_DF'."""
  return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key, params)


def is_matrix(name: str) -> bool:
  """Returns whether weight decay applies: two letters or more, without N.

  Biases and gains of several heads have two letters and are no matrices.
  """
  if _is_bungee(name) or name.startswith('bias_') or '_gain_' in name:
    return False
  return len(rules.letters_of(name)) > 1


def _is_bungee(name: str) -> bool:
  return name.startswith('bungee')


def _kind(name: str) -> str:
  if _is_bungee(name):
    return 'bungee'
  return 'limit' if name.endswith('_limit_K') else 'weights'


def without_limits(gradient: Any) -> Any:
  """Returns a gradient with zeros for running limits, whose own is virtual."""
  return jax.tree.map(
    lambda g, name: jnp.zeros_like(g) if _kind(name) == 'limit' else g,
    gradient,
    names(gradient),
  )


def make(
  config: training_config.OptimizerConfig,
) -> optax.GradientTransformationExtraArgs:
  """Returns the chain; its `update` takes `learning_rate=`.

  With `skip_nonfinite`, a step whose gradient holds inf or NaN leaves
  parameters and moments as they were and is counted (`skipped_steps`).
  """
  adam = optax.scale_by_adam(config.b1, config.b2)
  clip = (
    optax.clip_by_global_norm(config.clip) if config.clip else optax.identity()
  )
  transfer = (
    scale_by_width(config.transfer_base)
    if config.transfer == 'width'
    else optax.identity()
  )
  weights = optax.chain(
    clip,
    adam,
    transfer,
    optax.add_decayed_weights(
      config.weight_decay,
      mask=lambda params: jax.tree.map(is_matrix, names(params)),
    ),
    scale_by_argument(1.0),
  )
  chain = optax.partition(
    {
      'weights': weights,
      'bungee': optax.chain(adam, scale_by_argument(config.bungee_rate)),
      'limit': follow_sign(_LIMIT_RATE),
    },
    lambda params: jax.tree.map(_kind, names(params)),
  )
  if config.skip_nonfinite:
    never = jnp.iinfo(jnp.int32).max
    chain = optax.apply_if_finite(chain, max_consecutive_errors=never)
  return chain


def skipped_steps(opt_state: optax.OptState) -> jax.Array | int:
  """Returns how many steps the guard has skipped."""
  if isinstance(opt_state, optax.ApplyIfFiniteState):
    return opt_state.total_notfinite
  return 0
