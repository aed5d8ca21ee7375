"""Does a focal loss, which weighs hard bytes more, cost cross-entropy?"""

import dataclasses

from kaiju_jax.experiments.configs import tiny


@dataclasses.dataclass
class Settings:
  gamma: float = 2.0  # 0 for the cross-entropy.


def make_focal(experiment):
  import jax.numpy as jnp

  from kaiju_jax.model import batches
  from kaiju_jax.objectives import language
  from kaiju_jax.objectives import objective

  def loss(model, variables, batch, z):
    hidden_BLD = batches.hidden(model, variables, batch, z.attention)
    loss_BL = language.hidden_cross_entropy(
      model, variables, hidden_BLD, batch, z.logits
    )
    hard_BL = (1 - jnp.exp(-loss_BL)) ** experiment.parts.settings.gamma
    total = jnp.sum(batch.weight_BL * hard_BL * loss_BL)
    return objective.Sums(total, jnp.sum(batch.weight_BL), {})

  return objective.Objective(loss)


ARMS = ('language', 'focal')
OBJECTIVES = {'focal': make_focal}
SETTINGS = Settings


def get_config(arm: str = 'focal'):
  experiment = tiny.get_config()
  experiment.objective.name = arm
  return experiment
