"""Training the token-level head, behind a frozen trunk or together with it.

    frozen    the head's loss alone; the trunk's hidden states are data
    joint     the language model's loss + coefficient · the head's

The head's loss is the mean of each token's binary cross-entropy along each
dimension, weighted, so that texts may be labelled in part:

    Σ weight · (−label · log σ(logit) − (1 − label) · log σ(−logit)) / Σ weight

The sources say that there is classifier training after fine-tuning, and no
more: the loss and the two ways are our guess. One device, one [B, L] batch a
step.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import optax

from kaiju_jax.data import packing
from kaiju_jax.model import token_head
from kaiju_jax.model import transformer
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import loss
from kaiju_jax.training import optimizer as optimizer_lib
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step as step_lib

Step = Callable[..., tuple[state_lib.TrainState, dict[str, jax.Array]]]


class Labels(NamedTuple):
  """What is known of a batch's tokens.

  Attributes:
    label_BLC: float32, 0…1: whether the text up to a token has a property.
    weight_BLC: float32, 0 where that is not known; the label is not read then.
  """

  label_BLC: jax.Array
  weight_BLC: jax.Array


def cross_entropy(logits_BLC: jax.Array, labels: Labels) -> jax.Array:
  """Returns the head's loss, a float32 scalar in nats; 0 without labels."""
  logits_BLC = logits_BLC.astype(jnp.float32)
  weight_BLC = labels.weight_BLC
  label_BLC = jnp.where(weight_BLC > 0, labels.label_BLC, 0)
  loss_BLC = -label_BLC * jax.nn.log_sigmoid(logits_BLC)
  loss_BLC -= (1 - label_BLC) * jax.nn.log_sigmoid(-logits_BLC)
  weight = jnp.sum(weight_BLC)
  return jnp.sum(weight_BLC * loss_BLC) / jnp.where(weight > 0, weight, 1.0)


def frozen_loss(
  model: transformer.Transformer,
  head: token_head.TokenHead,
  params: Any,
  trunk: Any,
  batch: packing.Batch,
  labels: Labels,
) -> jax.Array:
  """Returns the head's loss, which has no gradient in the trunk.

  Args:
    model: the trunk.
    head: the head.
    params: of the head.
    trunk: parameters of the trunk, masters or an export's.
    batch: one [B, L] batch.
    labels: of its tokens.
  """
  hidden_BLD = lax.stop_gradient(_hidden(model, trunk, batch, 0.0))
  return cross_entropy(head.apply({'params': params}, hidden_BLD), labels)


def start(
  experiment: experiment_lib.Experiment,
  head: token_head.TokenHeadConfig,
  trunk: Any = None,
) -> state_lib.TrainState:
  """Returns the state before the first step.

  Args:
    experiment: of the trunk; its optimizer is used.
    head: the dimensions.
    trunk: float32 parameters to train with the head; None leaves them frozen.
  """
  hidden_BLD = jnp.zeros((1, 1, experiment.model.d_model))
  params = token_head.TokenHead(head).init(jax.random.key(0), hidden_BLD)
  params = params['params']
  if trunk is not None:
    params = {'token_head': params, 'trunk': trunk}
  return state_lib.create(params, optimizer_lib.make(experiment.optimizer))


def frozen(
  experiment: experiment_lib.Experiment,
  head: token_head.TokenHeadConfig,
  total_tokens: int,
) -> Step:
  """Returns the jitted step that trains the head alone.

  It takes (state, trunk, batch, labels): `trunk` are the trunk's parameters,
  masters or an export's, and `batch` one [B, L] batch. The state is donated.
  Metrics are float32 scalars: head_loss, grad_norm, learning_rate.

  Args:
    experiment: of the trunk; its optimizer and schedule are used.
    head: the dimensions.
    total_tokens: row tokens of the whole run, which the schedule counts.
  """
  model, module = step_lib.model_of(experiment), token_head.TokenHead(head)

  def objective(params, trunk, batch, labels, z):
    del z
    value = frozen_loss(model, module, params, trunk, batch, labels)
    return value, {'head_loss': value}

  return _step(experiment, total_tokens, objective)


def joint(
  experiment: experiment_lib.Experiment,
  head: token_head.TokenHeadConfig,
  total_tokens: int,
  coefficient: float,
) -> Step:
  """Returns the jitted step that trains trunk and head together.

  As `frozen`'s, but that the state holds the trunk too, and the step takes
  (state, batch, labels). `loss` is the language model's, `head_loss` the
  head's before its coefficient.

  Args:
    experiment: what is trained.
    head: the dimensions.
    total_tokens: row tokens of the whole run, which schedules count.
    coefficient: of the head's loss, at least 0.

  Raises:
    ValueError: names the argument, its value and what would be right.
  """
  if not 0 <= coefficient < float('inf'):
    raise ValueError(f'coefficient={coefficient}: must be finite, at least 0.')
  if experiment.model.quantization.wire_weights == 'ternary':
    raise ValueError(
      "model.quantization.wire_weights='ternary': its replicas follow training"
      ' steps alone; train the head behind its export, frozen.'
    )
  model, module = step_lib.model_of(experiment), token_head.TokenHead(head)

  def objective(params, batch, labels, z):
    trunk = params['trunk']
    weight = jnp.sum(batch.weight_BL)
    weight = jnp.where(weight > 0, weight, 1.0)
    # Z-Reg's virtual gradient is not divided by what the loss is divided by.
    z_attention, z_logits = (c / weight for c in z)
    hidden_BLD = _hidden(model, trunk, batch, z_attention)
    language = loss.of_hidden(
      model, {'params': trunk}, hidden_BLD, batch, z_logits
    )
    language /= weight
    logits_BLC = module.apply({'params': params['token_head']}, hidden_BLD)
    value = cross_entropy(logits_BLC, labels)
    return language + coefficient * value, {
      'loss': language,
      'head_loss': value,
    }

  return _step(experiment, total_tokens, objective)


def _hidden(model, trunk, batch: packing.Batch, z) -> jax.Array:
  return model.apply(
    {'params': trunk}, batch.tokens_BL, batch.visibility(), z, method='hidden'
  )


def _step(
  experiment: experiment_lib.Experiment, total_tokens: int, objective
) -> Step:
  """One update of the state's parameters, by `training/optimizer.py`."""
  config = experiment.optimizer
  training_config.check_optimizer(config)
  optimizer = optimizer_lib.make(config)
  rate_of = optimizer_lib.shape_of_rate(config, total_tokens)

  def step(state, *arguments):
    rate = rate_of(state.tokens)
    z = [
      optimizer_lib.z_reg_coefficient(peak, config.z_reg.schedule, rate)
      for peak in (config.z_reg.attention, config.z_reg.logits)
    ]
    gradient, metrics = jax.grad(objective, has_aux=True)(
      state.params, *arguments, z
    )
    updates, opt_state = optimizer.update(
      gradient,
      state.opt_state,
      state.params,
      learning_rate=config.learning_rate * rate,
    )
    rows, length = arguments[-1].label_BLC.shape[:2]
    state = state.replace(
      step=state.step + 1,
      tokens=state.tokens + float(rows * length),
      params=optax.apply_updates(state.params, updates),
      opt_state=opt_state,
    )
    return state, metrics | {
      'grad_norm': optax.tree.norm(optimizer_lib.without_limits(gradient)),
      'learning_rate': jnp.asarray(config.learning_rate * rate),
    }

  return jax.jit(step, donate_argnums=0)
