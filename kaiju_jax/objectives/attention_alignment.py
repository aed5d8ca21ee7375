"""Attention alignment: each layer's attention learns to do as a teacher's does.

A student that began with a teacher's weights, in cheaper attention, is trained
layer by layer, all layers at once. Each layer's attention reads what the
teacher's reads, so that it does not see the errors of the layers below, and the
loss is the relative error of what it gives behind w_o,

    mean over layers of  Σ_tokens ‖student − teacher‖² / Σ_tokens ‖teacher‖²

Only the parameters of attention are trained. (Stages as in MOHAWK, Bick et al.
2024: mixers first, then hidden states or logits. The loss is our guess.)

The teacher's float32 parameters stand beside the student's under `TEACHER`. A
run's checkpoints do not hold them (`runs/start.py`).
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax import visibility
from kaiju_jax.model import attention_layers
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import rules

# The top-level name of the teacher's parameters beside the student's.
TEACHER = 'attention_teacher'


def teacher_of(
  config: objective_config.AttentionAlignment, student: model_config.ModelConfig
) -> model_config.ModelConfig:
  """Returns the teacher's config: the student's sizes in the teacher's layers.

  The teacher runs in float32 and without int8.
  """
  return dataclasses.replace(
    student,
    layout=config.layout,
    num_kv_heads=config.num_kv_heads,
    window=config.window or student.window,
    shared='both',
    dtype='float32',
    remat='none',
    quantization=quantization_config.none(),
  )


def make(
  config: objective_config.AttentionAlignment, student: model_config.ModelConfig
) -> objective_lib.Objective:
  """Returns the objective.

  Its metrics are error/I per layer I, the relative error of its attention.

  Args:
    config: the teacher's attention.
    student: the config of the model that is trained.
  """
  teacher = transformer.Transformer(teacher_of(config, student))

  def parameters() -> Mapping[str, Any]:
    tokens_BL, seen = jnp.zeros((1, 8), jnp.int32), visibility.causal(8)
    drawn = teacher.init(jax.random.key(0), tokens_BL, seen)
    return {TEACHER: drawn['params']}

  def loss(model, variables, batch, z):
    params = variables['params']
    taught = jax.tree.map(
      lax.stop_gradient,
      attention_layers.record(teacher, params[TEACHER], batch),
    )
    out_IBLD = attention_layers.attend(
      model, params, taught.x_IBLD, batch, z.attention
    )
    error_I = _size(out_IBLD.astype(jnp.float32) - taught.out_IBLD)
    size_I = _size(taught.out_IBLD)
    is_token_BL = batch.limit_BL > batch.start_BL
    tokens = jnp.sum(is_token_BL).astype(jnp.float32)
    mean_I = collectives.total(size_I, 'B', rules.ROWS) / jnp.maximum(
      collectives.total(tokens, 'B', rules.ROWS), 1
    )
    error_I = error_I / jnp.maximum(mean_I, jnp.finfo(jnp.float32).tiny)
    return objective_lib.Sums(
      jnp.mean(error_I),
      tokens,
      {f'error/{i}': (error, tokens) for i, error in enumerate(error_I)},
    )

  return objective_lib.Objective(
    loss, parameters=parameters, trained=('blocks',), module='attention'
  )


def _size(x_IBLD: jax.Array) -> jax.Array:
  """Returns Σ ‖x‖² [I] of whole rows, of which x is this device's part of L.

  Padding sees nothing, so that it gets 0 from attention.
  """
  size_I = jnp.sum(jnp.square(x_IBLD.astype(jnp.float32)), axis=(1, 2, 3))
  return collectives.total(size_I, 'L', rules.ROWS)
