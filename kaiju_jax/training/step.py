"""The training step: sums microbatch gradients in f32, then applies AdamW.

    rows [A, B, L], B over fsdp                      one manual shard_map
      → for each microbatch: the objective's sums    over (fsdp, tensor)
        and its gradient, each weight gathered and
        reduced on its way
      → summed over the devices that hold copies of
        the same parameter (norm gains, Bungee)
    gradients, sharded like the parameters           plain jit: elementwise,
      → clip, AdamW on the f32 masters               but for scalar norms
    replicas, where updates are ternary              one manual shard_map
      → −1, 0 or 1 per weight (`replicas.py`)

An objective defines the loss (`objectives/objective.py`). One device is a mesh
of 1 × 1 and runs the same code.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import optax

from kaiju_jax.data import packing
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import fit
from kaiju_jax.training import optimizer as optimizer_lib
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import token_count
from kaiju_jax.wire import ternary_plan

# [A, B, …]: every device of a tensor group reads the same rows.
BATCH = PartitionSpec(None, 'fsdp')

model_of = state_lib.model_of


def total_tokens(experiment: experiment_lib.Experiment) -> int:
  """Returns the row tokens of the whole run."""
  return batch_schedule.schedule_of(experiment).tokens


class Step:
  """A jitted step; see `make` for its arguments and results."""

  def __init__(self, jitted: Any, learning_rate: float):
    self._jitted = jitted
    self._learning_rate = learning_rate

  def __call__(
    self,
    state: state_lib.TrainState,
    batch: packing.Batch,
    microbatches: jax.Array | int | None = None,
  ) -> tuple[state_lib.TrainState, dict[str, jax.Array]]:
    """Takes one step.

    Raises:
      ValueError: a number of microbatches outside 1…A, where it is a Python or
        numpy integer.
    """
    held = len(batch.tokens_BL)
    if isinstance(microbatches, int | np.integer):
      if not 1 <= microbatches <= held:
        raise ValueError(
          f'microbatches={microbatches}: must lie in 1…{held}, the number that'
          ' the batch holds.'
        )
      microbatches = jnp.int32(microbatches)
    # An argument, not a constant: peaks share one compiled program.
    return self._jitted(state, batch, microbatches, self._learning_rate)

  def with_rate(self, learning_rate: float) -> 'Step':
    """Returns this step with another peak rate; compiles nothing."""
    return Step(self._jitted, learning_rate)

  def lower(self, *arguments: Any) -> jax.stages.Lowered:
    """Lowers the step for arguments or their shapes, as `jax.jit` does."""
    return self._jitted.lower(*arguments)

  @property
  def compilations(self) -> int:
    """The number of programs that calls have compiled so far."""
    return self._jitted._cache_size()


def make(
  experiment: experiment_lib.Experiment,
  mesh: jax.sharding.Mesh | None = None,
  objective: objective_lib.Objective | None = None,
  start: state_lib.TrainState | None = None,
) -> Step:
  """Returns the jitted step.

  It takes (state, batch, microbatches=None) and returns (state, metrics). The
  state is donated. Arrays of the batch are [A, B, …]; the first `microbatches`
  of the A count, by default as many as the batch schedule says. The number may
  be traced, so that a growing batch compiles nothing; outside 1…A it makes loss
  and gradient NaN.

  Metrics are float32 scalars: loss (nats, the objective's loss over its
  weight), grad_norm, learning_rate (of this step: with a warm-up it is 0 at
  first), microbatches (if their number may change), loss_weight (the
  objective's weight), skipped_steps, those of the objective (NaN if its divisor
  is 0), and with ternary updates those of their hook.

  Args:
    experiment: the experiment.
    mesh: the mesh of `mesh.make`; by default the first device alone.
    objective: the objective; by default the experiment's.
    start: a state on the mesh, or its shapes; tracing them takes seconds.

  Raises:
    ValueError: wrong settings, or the mesh cannot split the model or batch.
  """
  mesh = mesh or mesh_lib.single()
  objective = objective or state_lib.objective_of(experiment)
  config = experiment.optimizer
  training_config.check_optimizer(config)
  fit.check(experiment, mesh_lib.config_of(mesh))
  hook = state_lib.hook_of(experiment, mesh)
  if hook is not None:
    hook.check(objective)
  optimizer = optimizer_lib.make(config)
  schedule = batch_schedule.schedule_of(experiment)
  varies = not batch_schedule.is_full(experiment)
  rate_of = optimizer_lib.shape_of_rate(config, schedule.tokens)
  summed = gradient_of(experiment, mesh, objective)
  if start is None:
    start = state_lib.abstract(experiment, mesh, objective)

  def step(state, batch, microbatches=None, peak=config.learning_rate):
    batch = jax.tree.map(jnp.asarray, batch)
    count, held = microbatches, len(batch.tokens_BL)
    if count is None:
      count = due(schedule, state.tokens) if varies else held
    rate = rate_of(token_count.to_float(state.tokens))
    rate *= optimizer_lib.rate_of_batch(config, count, held)
    z = _z_reg(config, rate)
    sums, gradient = summed(state.params, batch, count, *z, state.replica)
    weight = _divisor(sums.weight, count, held)
    gradient = jax.tree.map(lambda g: g / weight, gradient)
    trained, frozen = objective.split(state.params)
    updates, opt_state = optimizer.update(
      gradient, state.opt_state, trained, learning_rate=peak * rate
    )
    metrics = _metrics(sums, weight, gradient, peak * rate, opt_state)
    metrics |= {'microbatches': jnp.float32(count)} if varies else {}
    state = state.replace(
      step=state.step + 1,
      tokens=token_count.add(state.tokens, _row_tokens(batch, count)),
      params=objective_lib.join(optax.apply_updates(trained, updates), frozen),
      opt_state=opt_state,
    )
    if hook is not None:
      replica, followed = hook.update(state.replica, state.params, state.step)
      state, metrics = state.replace(replica=replica), metrics | followed
    return state, metrics

  # Shardings go out as they come in, so that a second call compiles nothing.
  stored = jax.tree.map(lambda leaf: leaf.sharding, start)
  return Step(
    jax.jit(step, donate_argnums=0, out_shardings=(stored, None)),
    config.learning_rate,
  )


def due(
  schedule: batch_schedule.BatchSchedule, tokens: token_count.TokenCount
) -> jax.Array:
  """Returns the number of microbatches of the step after `tokens`, int32."""
  first, *later = schedule.stages
  count = jnp.int32(first.count)
  for stage in later:
    begun = token_count.has_reached(tokens, stage.first * schedule.length)
    count = jnp.where(begun, stage.count, count)
  return count


def _divisor(weight, count, held: int) -> jax.Array:
  """Returns the loss's divisor; NaN if the batch has fewer than `count`."""
  weight = _as_divisor(weight)
  if isinstance(count, int):
    return weight
  return jnp.where((count >= 1) & (count <= held), weight, jnp.nan)


def _row_tokens(batch: packing.Batch, count: jax.Array | int) -> jax.Array:
  """Returns the tokens of `count` microbatches, padding included, uint32."""
  rows, length = batch.tokens_BL.shape[1:]
  return jnp.uint32(rows * length) * jnp.asarray(count, jnp.uint32)


def _z_reg(config, rate) -> list[jax.Array]:
  """Returns the coefficients of attention's and the logits' Z-Reg, float32."""
  return [
    jnp.asarray(
      optimizer_lib.z_reg_coefficient(peak, config.z_reg.schedule, rate),
      jnp.float32,
    )
    for peak in (config.z_reg.attention, config.z_reg.logits)
  ]


def _metrics(
  sums, weight, gradient, learning_rate, opt_state
) -> dict[str, jax.Array]:
  return {
    'loss': sums.loss / weight,
    'grad_norm': optax.tree.norm(optimizer_lib.without_limits(gradient)),
    'learning_rate': jnp.asarray(learning_rate, jnp.float32),
    'loss_weight': sums.weight,
    'skipped_steps': jnp.asarray(
      optimizer_lib.skipped_steps(opt_state), jnp.float32
    ),
  } | {name: x / by for name, (x, by) in sums.metrics.items()}


def _as_divisor(weight: jax.Array) -> jax.Array:
  """Returns the weight as a divisor: 1 in place of 0.

  A step may have no token with a loss, as with rows of one-token remainders;
  its gradient is then zero, not NaN.
  """
  return jnp.where(weight > 0, weight, 1.0)


def gradient_of(
  experiment: experiment_lib.Experiment,
  mesh: jax.sharding.Mesh,
  objective: objective_lib.Objective | None = None,
) -> Callable[..., Any]:
  """Returns the function that computes a step's `Sums` and gradient.

  It takes (params, batch, count, z_attention, z_logits, replica=None). The
  gradient is that of `Sums.loss` in the trained parameters, sharded like them.
  """
  model = model_of(experiment)
  objective = objective or state_lib.objective_of(experiment)

  def local(params, batch, count, z_attention, z_logits, replica):
    held = ternary_plan.collections(replica)
    trained, frozen = objective.split(params)
    z = objective_lib.ZReg(z_attention, z_logits)

    def of(index):
      microbatch = jax.tree.map(lambda x: x[index], batch)

      def loss(trained):
        variables = {'params': objective_lib.join(trained, frozen), **held}
        sums = objective.loss(model, variables, microbatch, z)
        chex.assert_rank([sums.loss, sums.weight], 0)  # Sums, not means.
        return sums.loss, sums

      gradient, sums = jax.grad(loss, has_aux=True)(trained)
      return sums, gradient

    sums, gradient = _over_microbatches(of, len(batch.tokens_BL), count)
    sums = jax.tree.map(lambda x: collectives.total(x, 'B', rules.ROWS), sums)
    return sums, collectives.summed_over_copies(gradient)

  def summed(params, batch, count, z_attention, z_logits, replica=None):
    objective.check(batch)
    specs = rules.specs(params, mesh)
    whole = ternary_plan.specs_of(replica)
    scalar = PartitionSpec()
    return jax.shard_map(
      local,
      mesh=mesh,
      in_specs=(specs, BATCH, scalar, scalar, scalar, whole),
      out_specs=(scalar, objective.split(specs)[0]),
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
  experiment: experiment_lib.Experiment,
  mesh: jax.sharding.Mesh,
  objective: objective_lib.Objective | None = None,
) -> tuple[state_lib.TrainState, packing.Batch]:
  """Returns the shapes of the step's state and batch, with their shardings.

  They suffice to compile the step for devices that this machine does not have.
  """
  objective = objective or state_lib.objective_of(experiment)
  state = state_lib.abstract(experiment, mesh, objective)
  data = experiment.data
  rows = jax.sharding.NamedSharding(mesh, BATCH)

  def of(shape, dtype):
    shape = data.microbatches, data.batch, *shape
    return jax.ShapeDtypeStruct(shape, dtype, sharding=rows)

  *names, _ = packing.Batch._fields
  fields = (
    of((data.length,), 'float32' if name == 'weight_BL' else 'int32')
    for name in names
  )
  extras = {
    name: of(one.shape, one.dtype) for name, one in objective.extras.items()
  }
  return state, packing.Batch(*fields, extras or None)
