"""What a training step carries on, and how it starts."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.model import transformer


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


def init_params(model: transformer.Transformer, seed: int) -> Any:
  """Returns float32 parameters drawn from `seed`."""
  tokens_BL = jnp.zeros((1, 8), jnp.int32)
  visibility = visibility_lib.causal(8)
  key = jax.random.key(seed)
  return jax.jit(model.init)(key, tokens_BL, visibility)['params']


def create(params: Any, optimizer: optax.GradientTransformation) -> TrainState:
  """Returns the state before the first step."""
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    tokens=jnp.zeros((), jnp.float32),
    params=params,
    opt_state=optimizer.init(params),
  )
