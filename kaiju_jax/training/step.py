"""One optimizer step: microbatch gradients summed in f32, then AdamW."""

from collections.abc import Callable

import jax
from jax import lax
import jax.numpy as jnp
import optax

from kaiju_jax import config as config_lib
from kaiju_jax.data import packing
from kaiju_jax.model import transformer
from kaiju_jax.training import loss
from kaiju_jax.training import optimizer as optimizer_lib
from kaiju_jax.training import state as state_lib

Step = Callable[..., tuple[state_lib.TrainState, dict[str, jax.Array]]]


def model_of(experiment: config_lib.Experiment) -> transformer.Transformer:
  """Returns the experiment's model."""
  return transformer.Transformer(
    experiment.model, experiment.optimizer.z_reg.target
  )


def total_tokens(experiment: config_lib.Experiment) -> int:
  """Returns the row tokens of the whole run."""
  data = experiment.data
  return experiment.loop.steps * data.microbatches * data.batch * data.length


def make(experiment: config_lib.Experiment) -> Step:
  """Returns the jitted step.

  The step takes (state, batch, microbatches=None): `batch` fields are
  [A, B, L]; `microbatches` (traced, default A) says how many of the A count,
  so that a batch-size warm-up compiles nothing. The state is donated. Metrics
  are float32 scalars: loss (mean over the step's loss tokens, nats),
  grad_norm, learning_rate, loss_tokens, skipped_steps.
  """
  model = model_of(experiment)
  config = experiment.optimizer
  optimizer_lib.check(config)
  optimizer = optimizer_lib.make(config)
  rate_of = optimizer_lib.shape_of_rate(config, total_tokens(experiment))

  def step(state, batch, microbatches=None):
    batch = jax.tree.map(jnp.asarray, batch)
    rate = rate_of(state.tokens)
    z_attention, z_logits = (
      optimizer_lib.z_reg_coefficient(peak, config.z_reg.schedule, rate)
      for peak in (config.z_reg.attention, config.z_reg.logits)
    )

    def loss_of(params, microbatch):
      return loss.weighted_cross_entropy(
        model, params, microbatch, z_attention, z_logits
      )

    total, gradient, weight, tokens = _accumulate(
      loss_of, state.params, batch, microbatches
    )
    # A step may hold no token that carries loss, such as rows of one-token
    # remainders: its gradient is zero, not NaN.
    weight = jnp.where(weight > 0, weight, 1.0)
    gradient = jax.tree.map(lambda g: g / weight, gradient)
    updates, opt_state = optimizer.update(
      gradient,
      state.opt_state,
      state.params,
      learning_rate=config.learning_rate * rate,
    )
    metrics = {
      'loss': total / weight,
      'grad_norm': optax.tree.norm(gradient),
      'learning_rate': jnp.asarray(config.learning_rate * rate),
      'loss_tokens': weight,
      'skipped_steps': jnp.asarray(
        optimizer_lib.skipped_steps(opt_state), jnp.float32
      ),
    }
    state = state_lib.TrainState(
      step=state.step + 1,
      tokens=state.tokens + tokens,
      params=optax.apply_updates(state.params, updates),
      opt_state=opt_state,
    )
    return state, metrics

  return jax.jit(step, donate_argnums=0)


def _accumulate(loss_of, params, batch: packing.Batch, microbatches):
  """Returns the summed loss, its gradient, the loss weight and the tokens."""
  shape = batch.tokens_BL.shape
  in_microbatch = float(shape[1] * shape[2])
  value_and_grad = jax.value_and_grad(loss_of)

  def of(index):
    microbatch = jax.tree.map(lambda x: x[index], batch)
    value, gradient = value_and_grad(params, microbatch)
    return value, gradient, jnp.sum(microbatch.weight_BL)

  if shape[0] == 1:
    return *of(0), in_microbatch
  count = shape[0] if microbatches is None else microbatches
  zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(of, 0))
  sums = lax.fori_loop(
    0, count, lambda i, s: jax.tree.map(jnp.add, s, of(i)), zero
  )
  return *sums, in_microbatch * count
