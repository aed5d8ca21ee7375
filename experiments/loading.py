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
  import jax

  from kaiju_jax.sharding import mesh
  from kaiju_jax.training import checkpoint
  from kaiju_jax.training import optimizer
  from kaiju_jax.training import replicas
  from kaiju_jax.training import state
  from kaiju_jax.training import step
  from kaiju_jax.training import workdir

  experiment = workdir.load_experiment(path)
  model_config.check(experiment.model)
  model = step.model_of(experiment)

  def initial():
    params = state.drawn(model, experiment.seed)
    plan = replicas.plan_of(experiment, params)
    return state.before(
      params, optimizer.make(experiment.optimizer), mesh.single(), plan
    )

  restored, steps = checkpoint.load(path, jax.eval_shape(initial))
  return Loaded(
    restored.params,
    experiment.model,
    restored.replica,
    experiment.data.tokenizer,
    f'{path}, step {steps:,}',
  )


def from_export(path: str, tokenizer: str = '') -> Loaded:
  """Returns an export's model (`quantization/export.py`).

  Args:
    path: of the file.
    tokenizer: path of the `tokenizer.json` that it was trained with, which the
      file does not name; '' for bytes.

  Raises:
    OSError, ValueError: the file is missing, or no export.
  """
  from kaiju_jax.quantization import export

  params, config = export.load(path)
  return Loaded(params, config, None, tokenizer, str(path))
