"""The state of training: its fields, its first value and its sharding."""

from typing import TYPE_CHECKING
from typing import Any
from typing import ClassVar

import flax.struct
import jax
import jax.numpy as jnp
import optax

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.data import mix_file
from kaiju_jax.model import deployed
from kaiju_jax.model import lora
from kaiju_jax.model import transformer
from kaiju_jax.objectives import by_source
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.objectives import registry
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules
from kaiju_jax.storage import parts
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import optimizer as optimizer_lib
from kaiju_jax.training import token_count
from kaiju_jax.wire import ternary_plan

if TYPE_CHECKING:
  from kaiju_jax.training import replicas


@flax.struct.dataclass
class TrainState:
  """The state that a checkpoint holds beside the data's position."""

  step: jax.Array  # int32, optimizer steps taken.
  # Exact count of row tokens consumed, which schedules follow.
  tokens: token_count.TokenCount
  params: Any  # float32 master weights of the model and of the objective.
  # The state of `optimizer.make`'s transformation, for the trained parameters.
  opt_state: optax.OptState

  # Not a field, so that checkpoints of all other modes do not contain it.
  replica: ClassVar[ternary_plan.State | None] = None


@flax.struct.dataclass
class TernaryState(TrainState):
  """The state of training with ternary updates."""

  # int8 weights that every device holds. They follow the masters step by step
  # and cannot be recomputed from them, so a run needs both to resume bit for
  # bit.
  replica: ternary_plan.State


def model_of(
  experiment: experiment_lib.Experiment,
) -> transformer.Transformer:
  """Returns the experiment's model."""
  return transformer.Transformer(
    experiment.model, experiment.optimizer.z_reg.target
  )


def objective_of(
  experiment: experiment_lib.Experiment,
) -> objective_lib.Objective:
  """Returns the experiment's objective, with metrics of its data's sources.

  Raises:
    OSError, ValueError: wrong settings of the objective, or a mix.json that
      cannot be read.
  """
  arguments = experiment.objective, experiment.model, experiment.data.length
  sources = mix_file.resolve(experiment.data).sources
  breakdown = objective_lib.report_nothing
  if sources:
    breakdown = by_source.breakdown([one.name for one in sources])
  if own := parts.find('OBJECTIVES', experiment.objective.name):
    objective = own(experiment)
  else:
    objective = registry.make(*arguments, breakdown)
  if sources:
    objective = by_source.reading(objective)
  return objective.train_adapters() if experiment.lora.rank else objective


def hook_of(
  experiment: experiment_lib.Experiment, mesh: jax.sharding.Mesh | None = None
) -> 'replicas.Hook | None':
  """Returns the ternary updates of a run; None in all other modes.

  Args:
    experiment: the experiment.
    mesh: by default the first device alone.
  """
  if experiment.model.quantization.wire_weights != 'ternary':
    return None
  from kaiju_jax.training import replicas

  return replicas.Hook(experiment, mesh or mesh_lib.single())


def initialize(
  experiment: experiment_lib.Experiment,
  mesh: jax.sharding.Mesh | None = None,
  objective: objective_lib.Objective | None = None,
  params: Any = None,
) -> TrainState:
  """Returns an experiment's state before the first step, stored on `mesh`.

  Args:
    experiment: the experiment.
    mesh: by default the first device alone.
    objective: the objective; by default the experiment's.
    params: the model's parameters, on the same mesh; by default drawn from the
      experiment's seed.
  """
  mesh = mesh or mesh_lib.single()
  objective = objective or objective_of(experiment)
  if params is None:
    _refuse_base(experiment)
    params = init_params(model_of(experiment), experiment.seed, mesh)
  return _store(
    lambda params: _of_experiment(experiment, mesh, objective, params),
    mesh,
    params,
  )


def abstract(
  experiment: experiment_lib.Experiment,
  mesh: jax.sharding.Mesh | None = None,
  objective: objective_lib.Objective | None = None,
) -> TrainState:
  """Returns shapes and shardings of the state that `initialize` returns."""
  mesh = mesh or mesh_lib.single()
  objective = objective or objective_of(experiment)

  def start(params):
    if experiment.lora.rank:
      base = deployed.quantize(params, experiment.model)
      params = attach(experiment, base)
    return _of_experiment(experiment, mesh, objective, params)

  state = jax.eval_shape(start, transformer.parameter_shapes(experiment.model))
  return jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding
    ),
    state,
    shardings(state, mesh),
  )


def attach(experiment: experiment_lib.Experiment, base: Any) -> Any:
  """Returns a base's parameters with new adapters as `experiment.lora` says.

  Args:
    experiment: the experiment.
    base: deployed parameters, or floats where the model has no codes.

  Raises:
    ValueError: see `lora.choose`.
  """
  config = experiment.lora
  return lora.attach(
    base, config.rank, config.alpha, config.matrices, experiment.seed
  )


def _refuse_base(experiment: experiment_lib.Experiment) -> None:
  if experiment.lora.rank:
    raise ValueError(
      f'lora.rank={experiment.lora.rank}: adapters need the parameters of their'
      ' base; `attach` adds adapters to them.'
    )


def _of_experiment(experiment, mesh, objective, params) -> TrainState:
  params = dict(objective.parameters()) | dict(params)
  return _start(
    params,
    optimizer_lib.make(experiment.optimizer),
    hook_of(experiment, mesh),
    objective.split(params)[0],
  )


def _store(start, mesh, params) -> TrainState:
  stored = shardings(jax.eval_shape(start, params), mesh)
  return jax.jit(start, out_shardings=stored)(params)


def draw_params(model: transformer.Transformer, seed: int) -> Any:
  """Returns float32 parameters drawn from `seed`."""
  tokens_BL = jnp.zeros((1, 8), jnp.int32)
  key = jax.random.key(seed)
  return model.init(key, tokens_BL, visibility_lib.causal(8))['params']


def init_params(
  model: transformer.Transformer,
  seed: int,
  mesh: jax.sharding.Mesh | None = None,
) -> Any:
  """Draws the parameters of `draw_params`, each on the device that stores it.

  The numbers are the same on every mesh; the default is the first device alone.
  """
  mesh = mesh or mesh_lib.single()

  # An argument, not a constant: all seeds share one compiled program.
  def draw(seed):
    return draw_params(model, seed)

  seed = jnp.uint32(seed)
  stored = rules.shardings(jax.eval_shape(draw, seed), mesh)
  return jax.jit(draw, out_shardings=stored)(seed)


def create(
  params: Any,
  optimizer: optax.GradientTransformation,
  mesh: jax.sharding.Mesh | None = None,
  hook: 'replicas.Hook | None' = None,
) -> TrainState:
  """Returns the state before the first step of all `params`, on `mesh`.

  Args:
    params: parameters as `init_params` returns them, on the same mesh.
    optimizer: the transformation that `optimizer.make` returns.
    mesh: by default the first device alone.
    hook: what `hook_of` returns on the same mesh.
  """
  mesh = mesh or mesh_lib.single()
  return _store(lambda params: _start(params, optimizer, hook), mesh, params)


def _start(params, optimizer, hook, trained=None) -> TrainState:
  """Returns the state before the first step, not yet stored on the mesh.

  `trained` are the parameters that get moments, by default all.
  """
  state = TrainState(
    step=jnp.zeros((), jnp.int32),
    tokens=token_count.start(),
    params=params,
    opt_state=optimizer.init(params if trained is None else trained),
  )
  if hook is None:
    return state
  return TernaryState(**vars(state), replica=hook.start(params))


def shardings(state: TrainState, mesh: jax.sharding.Mesh) -> TrainState:
  """Returns the shardings of a state or of its shapes.

  Owners store masters and moments; replicas are whole along D.
  """
  if state.replica is None:
    return rules.shardings(state, mesh)
  owned = rules.shardings(state.replace(replica=None), mesh)
  held = jax.tree.map(
    lambda spec: jax.sharding.NamedSharding(mesh, spec),
    ternary_plan.specs_of(state.replica),
  )
  return owned.replace(replica=held)
