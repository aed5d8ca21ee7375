"""Provides a trained chat model to serve, and trains it if there is none.

    chat.ready(experiment, 'runs/chat')

The first call trains a tokenizer and then the model. A later call resumes an
interrupted run, and never trains a finished model again.
"""

from collections.abc import Callable
import contextlib
import os
import pathlib
import sys

from kaiju_jax.data import bpe
from kaiju_jax.model import config as model_config
from kaiju_jax.runs import pool
from kaiju_jax.runs import train
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.tasks.dialogues import rows
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import fit
from kaiju_jax.training import workdir as workdir_lib

_TEXTS = 600  # Dialogues that the tokenizer is trained on; a second or two.


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


def ready(
  experiment: experiment_lib.Experiment,
  workdir: str | os.PathLike[str],
  say: Callable[[str], None] = _say,
  tensor: int = 1,
) -> pathlib.Path | None:
  """Returns a workdir with a trained model; trains the model if necessary.

  A workdir that already holds a run keeps its own experiment, so that a model
  of an older version is served unchanged.

  Args:
    experiment: of a new workdir. If its tokenizer is a file that does not
      exist, one is trained on dialogues.
    workdir: the folder of the run; created if it does not exist.
    say: prints a line for the user who waits.
    tensor: devices that will share the model.

  Returns:
    The workdir; or None after Ctrl-C or SIGTERM, with the work so far saved.

  Raises:
    ValueError, OSError: as `train.train`; BlockingIOError if another process
      trains there; or the devices cannot divide the model.
    KeyboardInterrupt: at a second Ctrl-C.
  """
  path = pathlib.Path(workdir)
  own = _own(path)
  model_config.check_tensor((own or experiment).model, tensor)
  steps = batch_schedule.schedule_of(own or experiment).steps
  if own is not None and workdir_lib.holds_checkpoint(path, steps):
    return path
  saved = workdir_lib.checkpoints(path)
  if saved:
    say(f'{path}: going on with the chat model, step {saved[-1]} of {steps}.')
  else:
    say(
      f'{path}: no chat model yet. Training a small one, this once. It takes'
      ' some minutes. Ctrl-C keeps what is done, and the same command goes on.'
    )
    _tokenizer(experiment, say)
  say('Making its dialogues, and compiling: a minute, less the second time.')
  experiment = own or experiment
  state = train.train(experiment, path, find_mesh(experiment))
  return path if int(state.step) == steps else None


def find_mesh(
  experiment: experiment_lib.Experiment,
) -> sharding_config.MeshConfig | None:
  """Returns the mesh that splits a batch between two cores; None if unable."""
  # XLA computes most of such a small step on one core. So each of two cores
  # becomes a device with half of the rows.
  mesh = sharding_config.MeshConfig(fsdp=2)
  try:
    fit.check(experiment, mesh)
  except ValueError:
    return None
  if pool.count_cores() < mesh.devices:
    return None
  import jax

  with contextlib.suppress(RuntimeError):  # JAX may have its devices already.
    jax.config.update('jax_num_cpu_devices', mesh.devices)
  is_ours = jax.default_backend() == 'cpu'
  return mesh if is_ours and jax.device_count() == mesh.devices else None


def _tokenizer(
  experiment: experiment_lib.Experiment, say: Callable[[str], None]
) -> None:
  """Trains the experiment's tokenizer if its file does not exist."""
  path = pathlib.Path(experiment.data.tokenizer)
  if experiment.data.tokenizer and not path.exists():
    say('Training its tokenizer: some seconds.')
    bpe.train(path, rows.texts(_TEXTS), experiment.model.vocab_size)


def _own(path: pathlib.Path) -> experiment_lib.Experiment | None:
  """Returns the experiment of the run that a workdir holds; None for none."""
  try:
    return workdir_lib.load_experiment(path)
  except FileNotFoundError:
    return None
