"""What a training step carries on, and how it starts."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.model import transformer
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules


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
  return _made_on(mesh, lambda: drawn(model, seed))


def create(
  params: Any,
  optimizer: optax.GradientTransformation,
  mesh: jax.sharding.Mesh | None = None,
) -> TrainState:
  """Returns the state before the first step, stored as `mesh` has it."""
  return _made_on(mesh, lambda params: before(params, optimizer), params)


def before(params: Any, optimizer: optax.GradientTransformation) -> TrainState:
  """Returns the state before the first step."""
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    tokens=jnp.zeros((), jnp.float32),
    params=params,
    opt_state=optimizer.init(params),
  )


def _made_on(mesh, function, *arguments):
  mesh = mesh or mesh_lib.single()
  shardings = rules.shardings(jax.eval_shape(function, *arguments), mesh)
  return jax.jit(function, out_shardings=shardings)(*arguments)
