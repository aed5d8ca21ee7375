"""Distillation: training on a teacher's sampled distribution of each token.

`distillation/sample.py` draws entries q̂ of the teacher's distribution p with
E q̂ = p. With m = Σ q̂ and lse the log-sum-exp of the student's logits z, a
token's loss is

    (1 − mix) · (m · lse − Σ q̂_i · z_i)  +  mix · (lse − z_token)

The first term's gradient, m · softmax(z) − q̂, is linear in q̂. So its mean over
draws is softmax(z) − p, the gradient of the cross-entropy against the whole
distribution. Division of q̂ by m would lose this linearity, and with it the
mean.

From the sources: soft targets of a randomly sampled subset of the vocabulary,
their expected values preserved. Our guess: the loss, its mix with the data's,
and the temperature τ. In the first term τ divides the student's logits, and the
term is multiplied by τ², so that its gradient keeps its size (Hinton et al.
2015).

A token whose values are all 0 has no teacher: its loss is lse − z_token alone,
whatever the mix.
"""

import jax
import jax.numpy as jnp

from kaiju_jax.model import batches
from kaiju_jax.model import z_reg
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.objectives import vocabulary_loss

# The names of a batch's extras.
IDS, VALUES = 'ids_BLT', 'values_BLT'


def make(
  config: objective_config.Distillation,
  length: int,
  chunk: int = 0,
  breakdown: objective_lib.Breakdown = objective_lib.report_nothing,
) -> objective_lib.Objective:
  """Returns the objective.

  Its batches carry two extras, [B, L, T]: `ids_BLT`, int32, the vocabulary
  entries that the teacher gave for each token, and `values_BLT`, float32, their
  q̂, 0 in free slots. Entries stand at the token that they predict.

  Its metrics are language_loss, the cross-entropy of the data; teacher_loss,
  the cross-entropy against the teacher over tokens that have one (at the
  temperature, without τ²); and entries, the mean number of entries of such a
  token.

  Args:
    config: slots, mix and temperature.
    length: L of the rows.
    chunk: tokens whose logits are held at a time; 0 for all.
    breakdown: makes metrics of each token's cross-entropy.
  """
  mix, temperature = config.mix, config.temperature
  slots = length, config.entries

  def loss(model, variables, batch, z):
    hidden_BLD = batches.hidden(model, variables, batch, z.attention)
    values_BLT = batch.extras[VALUES]
    found = vocabulary_loss.read(
      model,
      variables,
      batches.predicting(hidden_BLD, batch),
      batch.tokens_BL,
      entries=vocabulary_loss.Entries(batch.extras[IDS], values_BLT),
      temperature=temperature,
      chunk=chunk,
    )
    said_BL = found.lse_BL - found.target_BL
    mass_BL = jnp.sum(values_BLT, axis=-1)
    taught_BL = mass_BL * found.soft_lse_BL - found.taught_BL
    has_teacher_BL = jnp.any(values_BLT > 0, axis=-1)
    loss_BL = jnp.where(
      has_teacher_BL,
      (1 - mix) * temperature**2 * taught_BL + mix * said_BL,
      said_BL,
    )
    weight_BL = batch.weight_BL
    loss_BL = z_reg.inject(loss_BL, found.lse_BL, z.logits * weight_BL)
    weight = jnp.sum(weight_BL)
    weight_taught_BL = weight_BL * has_teacher_BL
    weight_taught = jnp.sum(weight_taught_BL)
    count_BL = jnp.sum(values_BLT > 0, axis=-1)
    return objective_lib.Sums(
      jnp.sum(weight_BL * loss_BL),
      weight,
      {
        'language_loss': (jnp.sum(weight_BL * said_BL), weight),
        'teacher_loss': (jnp.sum(weight_taught_BL * taught_BL), weight_taught),
        'entries': (jnp.sum(weight_taught_BL * count_BL), weight_taught),
      }
      | breakdown(said_BL, batch),
    )

  return objective_lib.Objective(
    loss,
    extras={
      IDS: jax.ShapeDtypeStruct(slots, jnp.int32),
      VALUES: jax.ShapeDtypeStruct(slots, jnp.float32),
    },
  )
