"""The training loop: restore, step, evaluate, save, in that order.

The same command resumes a run, however it ended. It continues from the last
checkpoint and gives the bits of an uninterrupted run, with the same order of
the data and the same records in metrics.jsonl. At most the work since that
checkpoint is lost.

If several processes train, each runs this loop on its own rows. The first one
locks the workdir and writes the records. All of them save and restore. A
Ctrl-C or SIGTERM at any of them stops all after the same step.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import os
import pathlib
from typing import Any

from kaiju_jax.sharding import processes
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import checkpoint
from kaiju_jax.training import config as training_config
from kaiju_jax.training import divergence
from kaiju_jax.training import environment
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import interrupt
from kaiju_jax.training import longer
from kaiju_jax.training import progress as progress_lib
from kaiju_jax.training import workdir as workdir_lib
from kaiju_jax.training.records import journal as journal_lib


def train(
  experiment: experiment_lib.Experiment,
  workdir: str | os.PathLike[str],
  *,
  state: Any,
  step: Callable[..., tuple[Any, Mapping[str, Any]]],
  batches: Iterator[Any],
  evaluate: Callable[[Any], Mapping[str, float]] | None = None,
  until: int | None = None,
  schedule: batch_schedule.BatchSchedule | None = None,
  amounts: Mapping[str, Any] | None = None,
) -> Any:
  """Trains to the last step of the run, or until Ctrl-C or SIGTERM.

  Args:
    experiment: that of `workdir`, if any, or the same with more steps.
    workdir: created if it does not exist.
    state: the first state, a pytree with `step` (int32) and `tokens` (a
      `TokenCount` or a scalar). Its arrays are deleted or donated.
    step: (state, batch) -> (state, {name: float32 scalar}), donates the state.
    batches: an iterator with get_state() (for JSON) and set_state().
    evaluate: state -> {name: value}; recorded under 'eval_' names.
    until: step after which to save and stop, as after Ctrl-C.
    schedule: the steps and their rows; by default `batch_schedule.schedule_of`.
    amounts: what amounts.json shall hold; its `peak` makes the records' MFU.

  Returns:
    The last state; after an interruption, with a message on how to continue, it
    is saved and its `step` is less than the schedule's `steps`.

  Raises:
    ValueError: wrong loop settings, another run's workdir, or too little data.
    divergence.Diverged: the run diverges; its last finite checkpoint is kept.
    OSError: a record or checkpoint could not be written (SaveError) or read
      (RestoreError), or another process trains in the workdir.
    KeyboardInterrupt: at a second Ctrl-C, which waits for no save in progress.
  """
  config, folder = experiment.loop, pathlib.Path(workdir)
  training_config.check_loop(config)
  schedule = schedule or batch_schedule.schedule_of(experiment)
  steps, is_main = schedule.steps, processes.is_main()
  with contextlib.ExitStack() as stack:
    if is_main:
      stack.enter_context(_open(folder, experiment))
    progress = progress_lib.Progress('step', steps, quiet=not is_main, every=0)
    stack.enter_context(progress)
    checkpoints = stack.enter_context(
      checkpoint.Checkpoints(folder, config.checkpoints_kept, progress.say)
    )
    state, start = checkpoints.restore(state, batches)
    start = start or schedule.begins[0]
    _say_start(progress, folder, start, steps)
    if start >= steps:
      return state
    journal = stack.enter_context(
      _journal(
        experiment, folder, start, progress, schedule, checkpoints, amounts
      )
    )
    vote = processes.Vote()
    stop = stack.enter_context(interrupt.Interrupt())
    for number in range(start + 1, steps + 1):
      with journal.trace(number):
        batch = _next(batches, number)
        state, values = step(state, batch)
        journal.step(number, state.tokens, values, batch)
      stopping = vote(stop.requested) or number == until

      if evaluate and _due(number, config.evaluate_every, steps):
        with journal.pause():
          journal.evaluation(number, state.tokens, evaluate(state))
      checkpoints.check()
      if stopping or _due(number, config.checkpoint_every, steps):
        journal.save(number, state, batches)
      if stopping:
        break

    checkpoints.wait()
    progress.end(_farewell(number, steps, folder))
    return state


def _open(folder: pathlib.Path, experiment: experiment_lib.Experiment):
  """Opens the workdir; `runs/train.py` has asked the task for its rows."""
  return workdir_lib.open_workdir(folder, experiment, longer.all_rows)


def _journal(
  experiment: experiment_lib.Experiment,
  folder: pathlib.Path,
  start: int,
  progress: progress_lib.Progress,
  schedule: batch_schedule.BatchSchedule,
  checkpoints: checkpoint.Checkpoints,
  amounts: Mapping[str, Any] | None,
) -> journal_lib.Journal:
  """Notes the start in the workdir; returns the recorder of what follows."""
  if is_main := processes.is_main():
    workdir_lib.note_start(folder, experiment, start, amounts)
  return journal_lib.Journal(
    folder if is_main else None,
    start,
    experiment.loop,
    progress,
    schedule,
    divergence.Watch(experiment, folder, checkpoints, progress.say),
    ((amounts or {}).get('peak') or {}).get('token_seconds', 0.0),
  )


def _say_start(progress, folder: pathlib.Path, start: int, steps: int) -> None:
  if start >= steps:
    progress.say(f'{folder}: complete, all {start} steps are done.')
    return
  if start:
    progress.say(f'{folder}: going on from step {start} of {steps}.')
  progress.begin(start, 'compiling')


def _due(number: int, every: int, steps: int) -> bool:
  return number == steps or (every > 0 and number % every == 0)


def _next(batches: Iterator[Any], number: int) -> Any:
  try:
    return next(batches)
  except StopIteration:
    raise ValueError(
      f'The data ended before step {number}: batches must go on until the'
      " run's last step."
    ) from None


def _farewell(number: int, steps: int, folder: Any) -> str:
  if number == steps:
    return f'{folder}: done, {steps} step{"s" if steps > 1 else ""}.'
  command = environment.typed_command()
  again = 'program goes on from there.'
  if command is not None:
    again = f'command goes on from there:\n  {command}'
  return (
    f'{folder}: stopped and saved at step {number} of {steps}. The same {again}'
  )
