"""Exports a candidate model with the limits of a server's drift checkpoint."""

import datetime
import pathlib
from typing import NamedTuple

import numpy as np

from kaiju_jax.app import server_folder
from kaiju_jax.interchange import own
from kaiju_jax.runs import load
from kaiju_jax.serving.drift import calibration
from kaiju_jax.serving.drift import monitor
from kaiju_jax.serving.drift import watch


class Candidate(NamedTuple):
  """A model with other limits."""

  origin: str  # The checkpoint, in words.
  # The ratios of new and old limits: least, median, largest.
  moved: tuple[float, float, float]
  digest: str  # Of the weights.


def make_candidate(
  model: str, folder: str, out: str, checkpoint: str = ''
) -> Candidate:
  """Exports a model with the limits that a server's checkpoint proposes.

  Args:
    model: the model that the server serves.
    folder: the server's.
    out: the new folder of the export.
    checkpoint: a file of `folder`'s; '' for the newest.

  Raises:
    FileNotFoundError: the folder is no server's, or has no checkpoint.
    OSError, ValueError: the checkpoint is damaged or of another model, or the
      model cannot be read or written.
  """
  place = pathlib.Path(folder)
  key = server_folder.read_key(place)
  checkpoints = watch.Folder(place / server_folder.DRIFT, key)
  found = [pathlib.Path(checkpoint)] if checkpoint else checkpoints.list()
  if not found:
    raise FileNotFoundError(
      f'{checkpoints.path}: has no checkpoint; a server with --drift=watch'
      ' writes one every four hours.'
    )
  path = found[0]
  try:
    tensors, fields = monitor.parse(checkpoints.read(path))
  except ValueError as error:
    raise ValueError(f'{path}: {error}.') from None
  loaded = load.from_anywhere(model)
  digest = load.digest(loaded)
  if fields['about'].get('weights') != digest:
    raise ValueError(
      f'{path}: proposes limits of another model: weights'
      f' {fields["about"].get("weights")!r}; {model} has {digest}.'
    )
  params = calibration.write_limits(
    loaded.params, loaded.config, tensors['proposed']
  )
  own.write(out, params, loaded.config, loaded.tokenizer, loaded.replica)
  seconds = fields['about']['seconds']
  when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
  ratio = tensors['proposed'] / tensors['limits']
  return Candidate(
    f'{path.name}, {when:%Y-%m-%d %H:%M} UTC',
    (float(ratio.min()), float(np.median(ratio)), float(ratio.max())),
    load.digest(load.from_anywhere(out)),
  )
