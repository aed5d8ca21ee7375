"""One experiment: the model, its data, its optimizer and its loop.

No module here or below imports jax, so that an experiment's `--help` is
instant; dtypes are strings.
"""

import dataclasses

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.training import config as training_config

INITS = 'standard', 'scaled', 'previous', 'induction'


@dataclasses.dataclass
class Experiment:
  """Everything that a run's result depends on beside the hardware.

  Attributes:
    model: shape and techniques.
    data: where rows come from.
    objective: what a step minimizes.
    optimizer: AdamW, schedules, Z-Reg.
    loop: steps, logging, checkpoints.
    init: 'standard'; 'scaled' to have layers add little to the stream at first
      (`model/depth_scaled.py`); 'induction' for the needle's
      induction-suggesting initialization, 'previous' for the half of it that
      looks at the previous token (`evaluation/induction.py`).
    begin_with: workdir of a run, or an export with float weights
      (`runs/begin.py`), whose parameters this run begins with, instead of
      fresh ones; '' for none. It must be readable whenever the run starts or
      resumes.
    seed: the seed of the parameters and of the data's order.
  """

  model: model_config.ModelConfig = dataclasses.field(
    default_factory=model_config.ModelConfig
  )
  data: data_config.DataConfig = dataclasses.field(
    default_factory=data_config.DataConfig
  )
  objective: objective_config.ObjectiveConfig = dataclasses.field(
    default_factory=objective_config.ObjectiveConfig
  )
  optimizer: training_config.OptimizerConfig = dataclasses.field(
    default_factory=training_config.OptimizerConfig
  )
  loop: training_config.LoopConfig = dataclasses.field(
    default_factory=training_config.LoopConfig
  )
  init: str = 'standard'
  begin_with: str = ''
  seed: int = 0
