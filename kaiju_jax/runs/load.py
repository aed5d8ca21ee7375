"""A trained model from where it lies: a workdir, or an exported file."""

from typing import Any
from typing import NamedTuple

from kaiju_jax.model import config as model_config


class Loaded(NamedTuple):
  """What a decoder is made of.

  Attributes:
    params: float32 master weights, or an export's codes.
    config: the model's.
    replica: the training state's, where its updates were ternary.
    tokenizer: path of its `tokenizer.json`, '' for bytes.
    origin: what was read, in words.
  """

  params: Any
  config: model_config.ModelConfig
  replica: Any
  tokenizer: str
  origin: str


def from_workdir(path: str) -> Loaded:
  """Returns the latest whole checkpoint's model; changes nothing there.

  Raises:
    OSError: no workdir, no checkpoint, or none that can be read.
    ValueError: an address, or a config that this code does not know.
  """
  from kaiju_jax.runs import trained

  found = trained.load(path)
  return Loaded(
    found.params,
    found.experiment.model,
    found.replica,
    found.experiment.data.tokenizer,
    f'{path}, step {found.step:,}',
  )


def from_export(path: str, tokenizer: str = '') -> Loaded:
  """Returns an export's model (`interchange/own.py`).

  Args:
    path: of the file.
    tokenizer: path of the `tokenizer.json` that it was trained with, which the
      file does not name; '' for bytes.

  Raises:
    OSError, ValueError: the file is missing, or no export.
  """
  from kaiju_jax.interchange import own

  params, config = own.load(path)
  return Loaded(params, config, None, tokenizer, str(path))
