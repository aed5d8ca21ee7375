"""The config of an experiment: model, data, objective, optimizer and loop.

Neither this module nor those that it imports import jax, so that `--help` is
instant; dtypes are strings.
"""

from collections.abc import Iterable
import dataclasses
from typing import Any

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.training import config as training_config

INITS = 'standard', 'scaled', 'previous', 'induction'


@dataclasses.dataclass
class PartsConfig:
  """Where an objective, task or function of one's own comes from.

  `runs/own_parts.py` fills the fields that a config leaves out.
  """

  # The path of a file, or an entry point of the group kaiju_jax.parts; by
  # default the config file, or the package that has what the file lacks.
  source: str = ''
  # The digest of the file, or the package's name and version; another one than
  # this is refused, '' takes any.
  digest: str = ''
  # An instance of the source's SETTINGS, or its fields as in JSON; None for the
  # defaults.
  settings: Any = None


@dataclasses.dataclass
class Experiment:
  """The settings that determine a run's result, apart from the hardware."""

  # Shape and techniques.
  model: model_config.ModelConfig = dataclasses.field(
    default_factory=model_config.ModelConfig
  )
  # The rows and their order.
  data: data_config.DataConfig = dataclasses.field(
    default_factory=data_config.DataConfig
  )
  # The objective that a step minimizes.
  objective: objective_config.ObjectiveConfig = dataclasses.field(
    default_factory=objective_config.ObjectiveConfig
  )
  # AdamW, schedules, Z-Reg.
  optimizer: training_config.OptimizerConfig = dataclasses.field(
    default_factory=training_config.OptimizerConfig
  )
  # Steps, logging, checkpoints.
  loop: training_config.LoopConfig = dataclasses.field(
    default_factory=training_config.LoopConfig
  )
  # 'standard'; 'scaled' for layers that add little to the stream at first
  # (`model/depth_scaled.py`); 'induction' for the needle's induction-suggesting
  # initialization, 'previous' for the half of it that attends to the previous
  # token (`evaluation/induction.py`).
  init: str = 'standard'
  # Workdir of a run, or an export with float weights (`runs/begin.py`), whose
  # parameters this run begins with; '' for fresh ones. It must be readable
  # whenever the run starts or resumes. With adapters it is their base, which
  # may also be an export of codes or a Hugging Face folder
  # (`runs/start.py`), or a run with such adapters, to go on from; the model
  # is the base's.
  begin_with: str = ''
  # Adapters, which alone are trained if there are any.
  lora: training_config.LoraConfig = dataclasses.field(
    default_factory=training_config.LoraConfig
  )
  # The source of an objective, task or function of layers of one's own.
  parts: PartsConfig = dataclasses.field(default_factory=PartsConfig)
  seed: int = 0  # The seed of the parameters and of the data's order.


def check_arm(arm: str, known: Iterable[str]) -> None:
  """Refuses an arm that a config does not have.

  Raises:
    ValueError: lists those that it has.
  """
  if arm not in known:
    raise ValueError(f'arm={arm!r}: must be one of {", ".join(known)}.')
