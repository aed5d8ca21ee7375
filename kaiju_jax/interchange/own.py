"""A folder in our own format, which loses nothing.

model.safetensors      the model with its config (`quantization/export.py`)
tokenizer.json, tokenizer_config.json    `tokens.py`

For models that the folders of others cannot hold, and for models that came from
one: what reads a training run's export reads these.
"""

import os
from typing import Any

from kaiju_jax.interchange import tokens
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import export
from kaiju_jax.storage import files
from kaiju_jax.storage import folders as folder_lib
from kaiju_jax.wire import ternary_plan

WEIGHTS = 'model.safetensors'


def write(
  folder: str | os.PathLike,
  params: Any,
  config: model_config.ModelConfig,
  tokenizer: str | None = '',
  replica: ternary_plan.State | None = None,
) -> None:
  """Writes a trained model in our own format; whole or not at all.

  Args:
    folder: a new one.
    params: float32 masters.
    config: the model's.
    tokenizer: path of a `tokenizer.json`, '' for bytes, None for none.
    replica: the training state's, where its updates were ternary.

  Raises:
    ValueError: no tokenizer of this model, or no replica.
    OSError: the folder exists, or cannot be written.
  """
  with folder_lib.written(folder) as path:
    if tokenizer is not None:
      tokens.write(path, tokenizer, config)
    with files.writing(str(folder)):
      export.save(path / WEIGHTS, params, config, replica)
