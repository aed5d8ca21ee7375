"""A trained chat model to serve: what is there already, or trained once.

    chat.ready(experiment, 'runs/chat')

The first call trains, a tokenizer first. A run that was interrupted is gone on
with, and a finished model is never trained again.
"""

from collections.abc import Callable
import os
import pathlib
import sys

from kaiju_jax.data import bpe
from kaiju_jax.runs import train
from kaiju_jax.tasks.dialogues import rows
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir as workdir_lib

_TEXTS = 600  # Dialogues that the tokenizer is trained on; a second or two.


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


def ready(
  experiment: experiment_lib.Experiment,
  workdir: str | os.PathLike,
  say: Callable[[str], None] = _say,
) -> pathlib.Path | None:
  """Returns a workdir that holds a trained model, after training it if need be.

  A workdir that holds a run already keeps its own experiment, whatever is given
  here, so that a model from an older version is served as it is. A line on
  stderr shows the progress and the time left. Whatever ends the process, the
  next call goes on from the last whole checkpoint.

  Args:
    experiment: what is trained in a workdir that is new. Where its tokenizer
      is a file that does not exist, one is trained for it on dialogues.
    workdir: the folder of the run; made where it does not exist.
    say: takes a line for the person who waits.

  Returns:
    The workdir, or None where Ctrl-C or SIGTERM came first; what was done by
    then is saved.

  Raises:
    ValueError, OSError: as `train.train`; among them BlockingIOError, where
      another process trains there.
    KeyboardInterrupt: at a second Ctrl-C.
  """
  path = pathlib.Path(workdir)
  own = _own(path)
  steps = batch_schedule.schedule_of(own or experiment).steps
  if own is not None and workdir_lib.holds_checkpoint(path, steps):
    return path
  saved = workdir_lib.checkpoints(path)
  if saved:
    say(f'{path}: going on with the chat model, step {saved[-1]} of {steps}.')
  else:
    say(
      f'{path}: no chat model yet. Training a small one, this once. It takes'
      ' some minutes, the first of them without a word. Ctrl-C keeps what is'
      ' done, and the same command goes on.'
    )
    _tokenizer(experiment)
  state = train.train(own or experiment, path)
  return path if int(state.step) == steps else None


def _tokenizer(experiment: experiment_lib.Experiment) -> None:
  """Trains the experiment's tokenizer, unless it is there."""
  path = pathlib.Path(experiment.data.tokenizer)
  if experiment.data.tokenizer and not path.exists():
    bpe.train(path, rows.texts(_TEXTS), experiment.model.vocab_size)


def _own(path: pathlib.Path) -> experiment_lib.Experiment | None:
  """Returns the experiment of the run that a workdir holds; None for none."""
  try:
    return workdir_lib.load_experiment(path)
  except FileNotFoundError:
    return None
