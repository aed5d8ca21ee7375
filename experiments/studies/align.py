"""Runs rounds of alignment, for each user and seed, and their reference."""

import dataclasses
import re

from kaiju_jax.alignment import config
from kaiju_jax.alignment import guards
from kaiju_jax.alignment import report
from kaiju_jax.alignment import rounds
from kaiju_jax.alignment import users
from kaiju_jax.experiments.configs import preference
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.reporting import figures
from kaiju_jax.runs import flags
from kaiju_jax.runs import load
from kaiju_jax.runs import reference
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib


def run(settings: settings_lib.Align) -> None:
  """Runs the rounds of each user and seed, and prints and draws what came out.

  Raises:
    OSError, ValueError: something cannot be read or written, or is wrong.
  """
  if settings.figure:
    figures.require_figures()
  out = flags.folder('out', settings.out)
  runs = {}
  for seed in settings.seeds:
    for user in settings.user:
      asked = _settings(settings, user, seed)
      config.check(asked)
      users.parse(user, asked.choice_temperature)
      runs[f'{user}, seed {seed}'] = asked
  found, cache = {}, {}
  for name, asked in runs.items():
    own = re.sub(r'[^\w.-]+', '_', name)
    folder = out / own if len(runs) > 1 else out
    experiment = _training(settings, asked.seed)
    found[name] = rounds.run(asked, experiment, folder, cache=cache)
    report.show(found[name], folder)
  if len(runs) > 1:
    report.show_runs(found)
  if settings.figure:
    report.draw(found, out / 'curves.png')


def _settings(
  settings: settings_lib.Align, user: str, seed: int
) -> config.Settings:
  """Returns the settings of a run's rounds."""
  names = {one.name for one in dataclasses.fields(config.Settings)}
  named = {x: y for x, y in vars(settings).items() if x in names}
  limits = guards.Limits(settings.kl_max, settings.length_max, settings.cut_max)
  own = {'user': user, 'seed': seed, 'limits': limits}
  return config.Settings(**named | own, is_guarded=settings.guards)


def _training(
  settings: settings_lib.Align, seed: int
) -> experiment_lib.Experiment:
  """Returns the training of a round."""
  lora = training_config.LoraConfig(
    settings.rank, settings.alpha, settings.matrices
  )
  if lora.rank:
    dtype = 'float32' if dispatch.platform() == 'cpu' else 'bfloat16'
    experiment = preference.get_adapters(lora, dtype)
  else:
    experiment = preference.get_config(settings.model)
  experiment.seed = seed
  experiment.data.batch = settings.batch or 1
  experiment.optimizer.learning_rate = settings.rate
  experiment.optimizer.schedule, experiment.optimizer.warmup = 'constant', 0.0
  experiment.objective.preference.beta = settings.beta
  experiment.loop.steps = settings.steps
  experiment.loop.evaluate_every = 0
  experiment.loop.checkpoint_every = settings.steps
  experiment.loop.checkpoints_kept = 1
  return experiment


def write_reference(settings: settings_lib.Align) -> str:
  """Writes a frozen model's log-probabilities; returns how many, in words.

  The same command again reads only conversations that are new.

  Raises:
    OSError, ValueError: as `load.from_anywhere` and `reference.write`.
  """
  loaded = load.from_anywhere(settings.model)
  total, fresh = reference.write(
    loaded,
    settings.data,
    settings.reference,
    settings.length,
    settings.batch or 2,
  )
  return (
    f'{settings.reference}: {total:,} conversations with a choice, {fresh:,} of'
    f' them read now with {loaded.origin}.'
  )
