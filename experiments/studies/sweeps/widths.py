"""The same model in another width."""

import copy

from kaiju_jax.training import experiment as experiment_lib


def with_width(
  experiment: experiment_lib.Experiment, width: int
) -> experiment_lib.Experiment:
  """Returns a copy whose d_model is `width`; heads and d_ff keep their ratio.

  The size of a head stays as it is.

  Raises:
    ValueError: heads or d_ff would not be whole.
  """
  made = copy.deepcopy(experiment)
  model, was = made.model, experiment.model.d_model
  for name in ('num_heads', 'd_ff'):
    value = getattr(model, name) * width
    if width < 1 or value % was:
      raise ValueError(
        f'width {width}: model.{name}={getattr(model, name)} at'
        f' model.d_model={was} would become {value / was:g}, which must be a'
        ' positive whole number.'
      )
    setattr(model, name, value // was)
  model.d_model = width
  return made
