"""The objective that a config names."""

from kaiju_jax.model import config as model_config
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.objectives import language
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.objectives import token_head


def make(
  config: objective_config.ObjectiveConfig,
  model: model_config.ModelConfig,
  length: int,
) -> objective_lib.Objective:
  """Returns the objective of a model's run over rows of `length` tokens.

  Raises:
    ValueError: settings that cannot be meant.
  """
  objective_config.check(config)
  if config.name == 'token_head':
    return token_head.make(config.token_head, model.d_model, length)
  return language.OBJECTIVE
