"""Reads the rows behind a step of a run again, such as a spike of the loss."""

import contextlib
import dataclasses
import itertools
import json
import os
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import loader
from kaiju_jax.data import mixture
from kaiju_jax.data import packing
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.runs import own_parts
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir as workdir_lib


class StepRow(NamedTuple):
  """A row that a step has read."""

  microbatch: int  # The microbatch of the step.
  number: int  # The row's number in the run.
  source: str  # The source's name; '' for `data.path`.
  row: packing.Row  # The row.
  origins: tuple[packing.Origin, ...]  # What stands in it, in order.


class Step(NamedTuple):
  """The rows of a step."""

  experiment: experiment_lib.Experiment  # The run's experiment.
  rows: list[StepRow]  # In the order of the batch.
  # Whether a checkpoint was there that names the text which the run has read.
  is_checked: bool


def read(workdir: str | os.PathLike[str], step: int, source: str = '') -> Step:
  """Returns the rows of a step, which are made again from the run's text.

  Args:
    workdir: the run's workdir.
    step: a step of the run, from 1 on; it need not have come yet.
    source: of a task of one's own: its config file or entry point, which is
      executed (`own_parts`). A workdir alone executes nothing.

  Raises:
    OSError: there is no run, or its text cannot be read.
    ValueError: the run has no such step, its text is no longer that of its
      latest checkpoint, or its task is not that of the source.
  """
  experiment = workdir_lib.load_experiment(workdir)
  task, own = experiment.data.task, experiment.parts
  is_ours = task in tasks.TASKS
  if bool(source) == is_ours:
    wanted = f"'', because of data.task={task!r}."
    if not is_ours:
      wanted = (
        f'{own.source!r}, or where that is now, because of data.task={task!r};'
        ' it is executed, and must be as it was.'
      )
    raise ValueError(f'--parts={source}: must be {wanted}')
  if source:
    own = dataclasses.replace(own, source=source)
    experiment = dataclasses.replace(experiment, parts=own)
    experiment = own_parts.resolve(experiment)
  begins = workdir_lib.find_begin(experiment)
  schedule = batch_schedule.schedule_of(experiment).branch(begins)
  if not begins[0] < step <= schedule.steps:
    raise ValueError(
      f'step {step}: {workdir} has the steps {begins[0] + 1} to'
      f' {schedule.steps}.'
    )
  found = tasks.task_of(experiment).load(experiment)
  is_checked = _check_text(workdir, experiment, found)
  numbers = range(schedule.row_of(step - 1), schedule.row_of(step))
  rows = [
    _row(found.rows, place // experiment.data.batch, number)
    for place, number in enumerate(numbers)
  ]
  return Step(experiment, rows, is_checked)


def describe(step: Step, characters: int) -> list[str]:
  """Returns the rows in lines: their documents, spans of tokens, and texts.

  Args:
    step: what `read` returns.
    characters: how many of a row's text to show, shared by its documents.

  Raises:
    OSError, ValueError: the tokenizer cannot be read.
  """
  tokenizer = tokenizer_lib.load(step.experiment.data.tokenizer)
  lines = []
  for one in step.rows:
    padding = int((one.row.source < 0).sum())
    lines.append(
      f'microbatch {one.microbatch}, row {one.number:,}'
      + (f' of {one.source}' if one.source else '')
      + f': documents: {len(one.origins)}, places of padding: {padding:,}'
    )
    begin = 0
    for origin in one.origins:
      end = begin + origin.end - origin.first
      tokens = one.row.tokens[begin:end]
      is_text = tokens.max(initial=0) < tokenizer.vocab_size
      text = tokenizer.decode(tokens) if is_text else ' '.join(map(str, tokens))
      most = max(1, characters // len(one.origins))
      more = '…' if len(text) > most else ''
      shown = json.dumps(text[:most], ensure_ascii=False) + more
      span = f'{origin.first:,}…{origin.end - 1:,}'
      lines.append(f'  {origin.name}, tokens {span}: {shown}')
      begin = end
  return lines


def _row(rows: Any, microbatch: int, number: int) -> StepRow:
  row, source = rows[number], ''
  if isinstance(rows, mixture.Mixture):
    source = rows.parts[row.extras[packing.COMPONENT]].name
  if hasattr(rows, 'locate'):
    origins = rows.locate(number)
  else:  # Rows that are drawn, and not cut out of documents.
    counted = itertools.groupby(row.source[row.source >= 0].tolist())
    origins = [
      packing.Origin(f'document {name}', 0, len(list(tokens)))
      for name, tokens in counted
    ]
  return StepRow(microbatch, number, source, row, tuple(origins))


def _check_text(
  workdir: str | os.PathLike[str],
  experiment: experiment_lib.Experiment,
  found: tasks.TaskData,
) -> bool:
  """Refuses another text than the latest checkpoint's; False for none."""
  steps = workdir_lib.checkpoints(workdir)
  if not steps:
    return False
  state = workdir_lib.read_position(workdir, steps[-1])
  data = experiment.data
  batches = loader.batches(
    found.rows, data.batch, data.microbatches, text=found.text
  )
  with contextlib.closing(batches):
    batches.set_state(state)
  return True
