"""Makes the objective that a config names."""

from kaiju_jax.model import config as model_config
from kaiju_jax.objectives import attention_alignment
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.objectives import distillation
from kaiju_jax.objectives import language
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.objectives import preference
from kaiju_jax.objectives import token_head


def make(
  config: objective_config.ObjectiveConfig,
  model: model_config.ModelConfig,
  length: int,
  breakdown: objective_lib.Breakdown = objective_lib.report_nothing,
) -> objective_lib.Objective:
  """Returns the objective of a run.

  Args:
    config: the objective's name and settings.
    model: the config of the model that it trains.
    length: L, tokens per row.
    breakdown: makes metrics of each token's cross-entropy.

  Raises:
    ValueError: see `config.check`.
  """
  objective_config.check(config)
  if config.name == 'token_head':
    return token_head.make(
      config.token_head, model.d_model, length, config.chunk, breakdown
    )
  if config.name == 'distillation':
    return distillation.make(
      config.distillation, length, config.chunk, breakdown
    )
  if config.name == 'attention_alignment':
    return attention_alignment.make(config.attention_alignment, model)
  if config.name == 'preference':
    return preference.make(config.preference, length, config.chunk)
  return language.make(config.chunk, breakdown)
