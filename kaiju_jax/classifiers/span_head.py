"""Trains a token-level head on labelled spans, and measures what it learnt.

    make       the experiment: the model of another run, and labelled texts
    train      `runs/train.py`, with the objective `token_head`
    measure    `evaluation/token_labels.py`, on held-out texts

Either the head alone is trained, on a frozen model; or both are, with the
head's loss times `joint` added to the language model's. A joint run changes the
model, and its head fits that model alone.
"""

from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import Any

from kaiju_jax.classifiers import planted_spans
from kaiju_jax.classifiers import settings as settings_lib
from kaiju_jax.data import config as data_config
from kaiju_jax.data import spans
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import load
from kaiju_jax.storage import files
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

# The most tokens of a delay that the report counts.
DELAY = 2
# Of the bound on false alarms.
CONFIDENCE = 0.95


def make(
  model: str | os.PathLike[str],
  path: str | os.PathLike[str],
  names: Sequence[str],
  settings: settings_lib.Spans,
  seed: int = 0,
) -> experiment_lib.Experiment:
  """Returns the experiment of a head's run.

  Args:
    model: what it begins with: a workdir, an export or a Hugging Face folder.
    path: labelled texts, as `data/spans.py` reads them.
    names: the dimensions.
    settings: of the run.
    seed: of the rows' order.

  Raises:
    OSError, ValueError: there is no such model.
  """
  before = load.describe(model)
  optimizer = training_config.for_others(settings.rate)
  if before.experiment is not None:
    optimizer = dataclasses.replace(
      before.experiment.optimizer, learning_rate=settings.rate
    )
  head = objective_config.TokenHeadTraining(
    names=tuple(names),
    frozen=not settings.joint,
    coefficient=settings.joint or 1.0,
  )
  return experiment_lib.Experiment(
    model=before.config,
    data=data_config.DataConfig(
      task='spans',
      path=str(path),
      tokenizer=before.tokenizer,
      chat_template=before.chats,
      length=min(1024, before.config.max_length),
      batch=1,
      label_weights=settings.label_weights,
      span_tokens='last',
    ),
    objective=objective_config.ObjectiveConfig('token_head', head),
    optimizer=optimizer,
    loop=training_config.LoopConfig(
      steps=settings.steps, checkpoint_every=settings.steps
    ),
    begin_with=str(model),
    seed=seed,
  )


def measure(
  experiment: experiment_lib.Experiment, params: Any
) -> dict[str, Any]:
  """Returns a `token_labels.Measured` per dimension, of the held-out texts.

  Raises:
    ValueError: nothing is held out, or no held-out token is labelled along a
      dimension; names it.
  """
  from kaiju_jax.evaluation import token_labels
  from kaiju_jax.model import token_head
  from kaiju_jax.tasks import spans as spans_task
  from kaiju_jax.training import state as state_lib

  unseen = spans_task.read(experiment).unseen
  if unseen is None:
    raise ValueError(
      f'data.held_out={experiment.data.held_out}: must be above 0, because a'
      ' head is measured on texts that it has not learnt.'
    )
  names = experiment.objective.token_head.names
  scored = token_labels.score(
    state_lib.model_of(experiment),
    params,
    token_head.TokenHeadConfig(names),
    unseen,
    experiment.data.batch,
  )
  found = {}
  for index, name in enumerate(names):
    try:
      found[name] = token_labels.measure(scored, index)
    except ValueError as error:
      raise ValueError(f'held-out texts, {name!r}: {error}') from error
  return found


def page(measured: dict[str, Any]) -> report.Report:
  """Returns the report on a head."""
  from kaiju_jax.evaluation import token_labels

  rows = [
    (
      name,
      one.spans,
      one.tokens,
      f'{one.auroc:.4f}',
      f'{len(one.delays)} of {one.spans}',
      f'{one.count_within(DELAY)} of {one.spans}',
      max(one.delays.tolist(), default='-'),
      f'{one.error:.5f}',
      f'{one.alarms[0]:,} of {one.alarms[1]:,}',
      f'{statistics.at_most(*one.alarms, CONFIDENCE):.3%}',
    )
    for name, one in measured.items()
  ]
  columns = (
    *('dimension', 'spans', 'tokens', 'AUROC', 'recognized'),
    *(f'within {DELAY} tokens', 'longest delay', 'calibration error'),
    *(f'false alarms at {token_labels.RECALL:.0%} recall', 'at most'),
  )
  found = report.Report('Token head on held-out texts').table(rows, columns)
  return found.say(
    'AUROC ranks all tokens. A span is recognized where a score behind its'
    ' first token is above a threshold that at most .1 % of the unlabelled'
    ' tokens exceed; the delay counts tokens behind its last one.'
  )


def train(
  experiment: experiment_lib.Experiment, workdir: str | os.PathLike[str]
) -> dict[str, Any] | None:
  """Trains a head, or resumes, and returns `measure`; writes the report.

  Returns:
    None after Ctrl-C or SIGTERM, with the work so far saved.

  Raises:
    OSError, ValueError: as `runs/train.train` and `measure`.
  """
  from kaiju_jax.runs import train as train_lib

  state = train_lib.train(experiment, workdir)
  if int(state.step) < experiment.loop.steps:
    return None
  measured = measure(experiment, state.params)
  page(measured).save(pathlib.Path(workdir))
  return measured


def train_on(
  settings: settings_lib.Spans, model: str, out: str, seed: int
) -> dict[str, Any] | None:
  """Trains a head on the texts that the settings name, as `make` and `train`.

  Planted chats are written beside `out`, the workdir of the new run.
  """
  path = settings.spans
  if path == 'planted':
    path = pathlib.Path(f'{out.rstrip("/")}.jsonl')
    path.parent.mkdir(parents=True, exist_ok=True)
    chats = planted_spans.chats(settings.chats, seed, settings.plain)
    files.write_json_lines(path, chats)
  names = spans.list_dimensions(spans.read(str(path), field='--spans'))
  return train(make(model, path, names, settings, seed), out)
