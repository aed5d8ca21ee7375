"""One optimizer step: microbatch gradients summed in f32, then AdamW.

    rows [A, B, L], B over fsdp                      one manual shard_map
      → for each microbatch: loss and gradient,      over (fsdp, tensor)
        each weight gathered and reduced on its way
      → summed over the copies of each parameter
    gradients, stored as the parameters are          plain jit: elementwise,
      → clip, AdamW on the f32 masters               but for scalar norms
    replicas, where updates are ternary              one manual shard_map
      → −1, 0 or 1 for each weight (`replicas.py`)

One device is a mesh of 1 × 1, and the same code.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import optax

from kaiju_jax.data import packing
from kaiju_jax.model import transformer
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import fit
from kaiju_jax.training import loss
from kaiju_jax.training import optimizer as optimizer_lib
from kaiju_jax.training import replicas
from kaiju_jax.training import state as state_lib
from kaiju_jax.wire import ternary_plan

# [A, B, L]: every device of a tensor group reads the same rows.
BATCH = PartitionSpec(None, 'fsdp')

Step = Callable[..., tuple[state_lib.TrainState, dict[str, jax.Array]]]


def model_of(experiment: experiment_lib.Experiment) -> transformer.Transformer:
  """Returns the experiment's model."""
  return transformer.Transformer(
    experiment.model, experiment.optimizer.z_reg.target
  )


def total_tokens(experiment: experiment_lib.Experiment) -> int:
  """Returns the row tokens of the whole run."""
  data = experiment.data
  return experiment.loop.steps * data.microbatches * data.batch * data.length


def make(
  experiment: experiment_lib.Experiment, mesh: jax.sharding.Mesh | None = None
) -> Step:
  """Returns the jitted step.

  The step takes (state, batch, microbatches=None): `batch` fields are
  [A, B, L]; `microbatches` (traced, default A) says how many of the A count,
  so that a batch-size warm-up compiles nothing. The state is donated. Metrics
  are float32 scalars: loss (mean over the step's loss tokens, nats),
  grad_norm, learning_rate, loss_weight (the sum of the tokens' weights),
  skipped_steps, and where updates are ternary those of `replicas.update`.

  Args:
    experiment: what is trained.
    mesh: of `mesh.make`; the first device alone by default.

  Raises:
    ValueError: optimizer settings that cannot be meant, or a model or batch
      that does not divide over the mesh.
  """
  mesh = mesh or mesh_lib.single()
  config = experiment.optimizer
  training_config.check_optimizer(config)
  fit.check(experiment, mesh_lib.config_of(mesh))
  replicas.warn_of_lag(experiment)
  optimizer = optimizer_lib.make(config)
  rate_of = optimizer_lib.shape_of_rate(config, total_tokens(experiment))
  summed = gradient_of(experiment, mesh)
  start, _ = abstract(experiment, mesh)
  plan = replicas.plan_of(experiment, start.params)

  def step(state, batch, microbatches=None):
    batch = jax.tree.map(jnp.asarray, batch)
    count = len(batch.tokens_BL) if microbatches is None else microbatches
    rate = rate_of(state.tokens)
    z = [
      jnp.asarray(
        optimizer_lib.z_reg_coefficient(peak, config.z_reg.schedule, rate),
        jnp.float32,
      )
      for peak in (config.z_reg.attention, config.z_reg.logits)
    ]
    total, gradient, loss_weight = summed(
      state.params, batch, count, *z, state.replica
    )
    # A step may hold no token that carries loss, such as rows of one-token
    # remainders: its gradient is zero, not NaN.
    weight = jnp.where(loss_weight > 0, loss_weight, 1.0)
    gradient = jax.tree.map(lambda g: g / weight, gradient)
    updates, opt_state = optimizer.update(
      gradient,
      state.opt_state,
      state.params,
      learning_rate=config.learning_rate * rate,
    )
    metrics = {
      'loss': total / weight,
      'grad_norm': optax.tree.norm(optimizer_lib.without_limits(gradient)),
      'learning_rate': jnp.asarray(config.learning_rate * rate),
      'loss_weight': loss_weight,
      'skipped_steps': jnp.asarray(
        optimizer_lib.skipped_steps(opt_state), jnp.float32
      ),
    }
    rows, length = batch.tokens_BL.shape[1:]
    state = state.replace(
      step=state.step + 1,
      tokens=state.tokens + float(rows * length) * count,
      params=optax.apply_updates(state.params, updates),
      opt_state=opt_state,
    )
    if plan is not None:
      replica, followed = replicas.update(
        plan, state.replica, state.params, state.step, mesh
      )
      state, metrics = state.replace(replica=replica), metrics | followed
    return state, metrics

  # Out as in, to the letter: a second call then finds the compiled step.
  stored = jax.tree.map(lambda leaf: leaf.sharding, start)
  return jax.jit(step, donate_argnums=0, out_shardings=(stored, None))


def gradient_of(experiment: experiment_lib.Experiment, mesh: jax.sharding.Mesh):
  """Returns (params, batch, count, z, z) → summed loss, gradient, loss weight.

  The gradient is stored as the parameters are. Where updates are ternary, the
  replicas are one more argument.
  """
  model = model_of(experiment)

  def local(params, batch, count, z_attention, z_logits, replica):
    held = ternary_plan.collections(replica)

    def of(index):
      microbatch = jax.tree.map(lambda x: x[index], batch)
      value, gradient = jax.value_and_grad(
        lambda params: loss.weighted_cross_entropy(
          model, params, microbatch, z_attention, z_logits, held
        )
      )(params)
      return value, gradient, jnp.sum(microbatch.weight_BL)

    value, gradient, weight = _over_microbatches(of, len(batch[0]), count)
    return (
      collectives.total(value, 'B', rules.ROWS),
      collectives.summed_over_copies(gradient),
      collectives.total(weight, 'B', rules.ROWS),
    )

  def summed(params, batch, count, z_attention, z_logits, replica=None):
    specs = rules.specs(params, mesh)
    whole = ternary_plan.specs_of(replica)
    scalar = PartitionSpec()
    return jax.shard_map(
      local,
      mesh=mesh,
      in_specs=(specs, BATCH, scalar, scalar, scalar, whole),
      out_specs=(scalar, specs, scalar),
      check_vma=False,
    )(params, batch, jnp.asarray(count), z_attention, z_logits, replica)

  return summed


def _over_microbatches(of: Callable[[Any], Any], total: int, count):
  """Returns the sum of `of(0)` … `of(count − 1)`; `count` may be traced."""
  if total == 1:
    return of(0)
  zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(of, 0))
  return lax.fori_loop(
    0, count, lambda i, sums: jax.tree.map(jnp.add, sums, of(i)), zero
  )


def abstract(
  experiment: experiment_lib.Experiment, mesh: jax.sharding.Mesh
) -> tuple[state_lib.TrainState, packing.Batch]:
  """Returns the shapes of the step's state and batch, with their shardings.

  Enough to compile the step for devices that are not here.
  """
  optimizer = optimizer_lib.make(experiment.optimizer)

  def start():
    params = state_lib.drawn(model_of(experiment), experiment.seed)
    plan = replicas.plan_of(experiment, params)
    return state_lib.before(params, optimizer, mesh, plan)

  state = jax.eval_shape(start)
  data = experiment.data
  shape = data.microbatches, data.batch, data.length
  rows = jax.sharding.NamedSharding(mesh, BATCH)
  batch = packing.Batch(
    *(
      jax.ShapeDtypeStruct(
        shape, 'float32' if name == 'weight_BL' else 'int32', sharding=rows
      )
      for name in packing.Batch._fields
    )
  )
  state = jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding
    ),
    state,
    state_lib.shardings(state, mesh),
  )
  return state, batch
