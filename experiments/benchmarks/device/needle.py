"""Is the needle found in float and in int8?

Trains arms of `experiments/configs/needle.py` on one seed and asks them their
questions, in OUT/needle: all that a training and a forward pass do, on the
device's kernels. A run that was stopped goes on from its checkpoint.
"""

import dataclasses
import pathlib
from typing import Any

from kaiju_jax.experiments.studies import arms
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import grid

from ...configs import needle as config
from . import setting as setting_lib

# int8 with shared keys and values; the same windows in float; full attention.
_ARMS = 'kaiju', 'interleaved', 'full'


def experiment_of(arm: str, dry: bool):
  experiment = config.get_config(arm)
  if dry:
    experiment.model = dataclasses.replace(
      experiment.model,
      layout='G0',
      num_layers=1,
      d_model=32,
      num_heads=2,
      head_dim=16,
      d_ff=32,
    )
    experiment.loop.steps = experiment.loop.checkpoint_every = 2
  return experiment


def cases(setting: setting_lib.Setting) -> dict[str, tuple[float, str]]:
  """Returns the arms."""
  return {arm: (110, arm) for arm in _ARMS[: 1 if setting.dry else None]}


def measure(setting: setting_lib.Setting, case: str) -> dict[str, Any]:
  """Returns the accuracy at the trained length, and of every cell."""
  experiment = experiment_of(case, setting.dry)
  folder = pathlib.Path(setting.out) / 'needle' / case
  jobs = [grid.Job(case, experiment, folder)]
  questions = arms.NeedleQuestions(1 if setting.dry else 64, 0)
  grid.run(jobs, finish=questions.finish())
  records = questions.read(jobs)
  trained = [x for x in records if x.length == experiment.data.length]
  total = sum(x.count for x in trained)
  right = sum(round(x.accuracy * x.count) for x in trained)
  return {
    'arm': case,
    'dtype': experiment.model.dtype,
    'length': experiment.data.length,
    'accuracy': right / total,
    'interval': statistics.wilson(right, total),
    'questions': total,
    'cells': [x._asdict() for x in records],
  }
