"""What a training step carries on, and how it starts."""

from typing import Any
from typing import ClassVar

import flax.struct
import jax
import jax.numpy as jnp
import optax

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.model import transformer
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules
from kaiju_jax.training import replicas
from kaiju_jax.wire import ternary
from kaiju_jax.wire import ternary_plan


@flax.struct.dataclass
class TrainState:
  """Everything that a checkpoint must hold, the data's place aside.

  Attributes:
    step: int32, optimizer steps taken.
    tokens: float32, row tokens consumed; what schedules count. Exact for
      2^24 steps of equal size.
    params: float32 master weights.
    opt_state: of `optimizer.make`.
  """

  step: jax.Array
  tokens: jax.Array
  params: Any
  opt_state: optax.OptState

  # No field: checkpoints of all other modes hold no trace of it.
  replica: ClassVar[ternary.State | None] = None


@flax.struct.dataclass
class TernaryState(TrainState):
  """The same where updates are ternary.

  Attributes:
    replica: int8 weights that every device holds. They follow the masters and
      are not made from them: a run goes on bit for bit only with both.
  """

  replica: ternary.State


def drawn(model: transformer.Transformer, seed: int) -> Any:
  """Returns float32 parameters drawn from `seed`."""
  tokens_BL = jnp.zeros((1, 8), jnp.int32)
  key = jax.random.key(seed)
  return model.init(key, tokens_BL, visibility_lib.causal(8))['params']


def init_params(
  model: transformer.Transformer,
  seed: int,
  mesh: jax.sharding.Mesh | None = None,
) -> Any:
  """Returns `drawn` parameters, each made where the mesh stores it.

  The same numbers on every mesh; by default on the first device alone.
  """
  mesh = mesh or mesh_lib.single()

  def draw():
    return drawn(model, seed)

  stored = rules.shardings(jax.eval_shape(draw), mesh)
  return jax.jit(draw, out_shardings=stored)()


def create(
  params: Any,
  optimizer: optax.GradientTransformation,
  mesh: jax.sharding.Mesh | None = None,
  plan: ternary.Plan | None = None,
) -> TrainState:
  """Returns the state before the first step, stored as `mesh` has it.

  Args:
    params: of `init_params`, on the same mesh.
    optimizer: of `optimizer.make`.
    mesh: by default the first device alone.
    plan: of `replicas.plan_of`, where updates are ternary.
  """
  mesh = mesh or mesh_lib.single()

  def start(params):
    return before(params, optimizer, mesh, plan)

  stored = shardings(jax.eval_shape(start, params), mesh)
  return jax.jit(start, out_shardings=stored)(params)


def before(
  params: Any,
  optimizer: optax.GradientTransformation,
  mesh: jax.sharding.Mesh | None = None,
  plan: ternary.Plan | None = None,
) -> TrainState:
  """Returns the state before the first step; arguments as of `create`."""
  state = TrainState(
    step=jnp.zeros((), jnp.int32),
    tokens=jnp.zeros((), jnp.float32),
    params=params,
    opt_state=optimizer.init(params),
  )
  if plan is None:
    return state
  replica = replicas.start(plan, params, mesh)
  return TernaryState(**vars(state), replica=replica)


def shardings(state: TrainState, mesh: jax.sharding.Mesh) -> TrainState:
  """Returns where a state (or its shapes) is stored.

  Masters and moments with their owners, replicas whole along D.
  """
  if state.replica is None:
    return rules.shardings(state, mesh)
  owned = rules.shardings(state.replace(replica=None), mesh)
  held = jax.tree.map(
    lambda spec: jax.sharding.NamedSharding(mesh, spec),
    ternary_plan.specs_of(state.replica),
  )
  return owned.replace(replica=held)
