"""Trains the runs whose workdirs are named, one after the other.

    python -m kaiju_jax.experiments.studies.sweeps.trained WORKDIR WORKDIR …

A process that `grid.complete` starts. A workdir needs no more than its
config.json. SIGTERM saves and ends with status 130. A run that diverges has a
result, the step at which it did, and the next one follows.
"""

from collections.abc import Sequence
import pathlib
import sys
from typing import Any

from kaiju_jax.evaluation import paired
from kaiju_jax.experiments.studies.sweeps import grid
from kaiju_jax.runs import train
from kaiju_jax.storage import files
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import divergence
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import metrics
from kaiju_jax.training import workdir


def main(folders: Sequence[str]) -> None:
  programs = {}
  for folder in map(pathlib.Path, folders):
    if (folder / grid.RESULT).exists():
      continue
    print(f'{folder}', flush=True)
    experiment = workdir.load_experiment(folder)
    try:
      state = train.train(experiment, folder, programs=programs)
    except divergence.Diverged as error:
      print(error, file=sys.stderr, flush=True)
      files.write_json(
        folder / grid.RESULT, {'loss': 'nan', 'diverged': error.step}
      )
      continue
    found = result(folder, experiment)
    if found is None:
      raise SystemExit(130)  # The training loop has said how to go on.
    files.write_json(folder / grid.RESULT, found | {'steps': int(state.step)})


def result(
  folder: pathlib.Path, experiment: experiment_lib.Experiment
) -> dict[str, Any] | None:
  """Returns what a workdir's records say of the finished run, None before.

  `loss` is the held-out one, or where nothing is held out the training loss of
  the last steps. A loss that is not finite is the string that float() reads.
  """
  records = metrics.read(folder)
  tokens = records[-1]['tokens'] if records else 0
  if tokens < batch_schedule.schedule_of(experiment).tokens:
    return None
  found = paired.measures(records)
  loss = found.get('eval_loss', found.get('loss'))
  if loss is None:
    raise ValueError(
      f'{folder}: no record holds a loss; loop.log_every='
      f'{experiment.loop.log_every} must be at most the run’s steps.'
    )
  return {'loss': _plain(loss), 'tokens': tokens}


def _plain(value: float) -> float | str:
  return value if value - value == 0 else str(value)


if __name__ == '__main__':
  try:
    main(sys.argv[1:])
  except (OSError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error
