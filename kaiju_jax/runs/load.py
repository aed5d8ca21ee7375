"""Loads a trained model: one function per source, `from_anywhere` for any.

It does not read Adam's moments, which are two thirds of a checkpoint. Importing
this module does not import jax.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.storage import addresses
from kaiju_jax.storage import files
from kaiju_jax.storage import strict
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir as workdir_lib


class Loaded(NamedTuple):
  """A model and its source."""

  # float32 master weights, an export's codes, or what decoding reads.
  params: Any
  config: model_config.ModelConfig  # The model's config.
  # With ternary updates, the int8 weights that the forward pass reads instead
  # of the masters; None otherwise.
  replica: Any
  tokenizer: str  # Path of its `tokenizer.json`, '' for bytes.
  origin: str  # A description of the source, such as 'runs/tiny, step 400'.
  # The run's experiment; None without a workdir.
  experiment: experiment_lib.Experiment | None = None
  step: int | None = None  # Optimizer steps taken; None without a workdir.
  # The folder of Hugging Face files whose chat template and settings of
  # sampling the model may have been trained with; '' without one.
  chats: str = ''
  # Whether this project trained it, so that it may know our own chat format.
  is_ours: bool = True
  # The digest of the file that `params` were read from, where all of its bytes
  # were hashed as they were read; '' otherwise.
  content: str = ''


def variables(loaded: Loaded) -> dict[str, Any]:
  """Returns a model's collections, as `Transformer.apply` takes them."""
  from kaiju_jax.wire import ternary_plan

  replica = ternary_plan.collections(loaded.replica)
  return {'params': loaded.params, **replica}


def digest(loaded: Loaded) -> str:
  """Returns the hash of a model's parameters and config, 32 hex digits.

  Where the file was hashed as it was read, its digest stands for the
  parameters. A digest that a file claims to have never does.
  """
  fields = strict.dump_known(loaded.config, model_config.DIGESTED)
  sums = hashlib.blake2b(
    json.dumps(fields, sort_keys=True).encode(), digest_size=16
  )
  if loaded.content:
    sums.update(f'content {loaded.content}'.encode())
    return sums.hexdigest()
  import jax
  import numpy as np

  tree = loaded.params, loaded.replica
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    array = np.ascontiguousarray(jax.device_get(leaf))
    sums.update(f'{jax.tree_util.keystr(path)} {array.shape}'.encode())
    sums.update(array.reshape(-1).view(np.uint8).data)
  return sums.hexdigest()


def from_anywhere(
  path: str | os.PathLike[str],
  tokenizer: str | None = None,
  quantization: quantization_config.QuantizationConfig | None = None,
  stacked: bool = False,
  dtype: str = '',
) -> Loaded:
  """Returns the model of a workdir, an export, or a Hugging Face folder.

  Args:
    path: the folder, or the file of an export.
    tokenizer: see `from_export`; must be None for other sources.
    quantization: how the model of a Hugging Face folder is quantized, to decode
      alone; None for float32 masters. It is also for the codes that an import
      kept (`coded.py`); other sources have their own.
    stacked: as `from_hugging_face`.
    dtype: of the activations of a Hugging Face folder's model, or of an import
      of one; '' for float32 on a CPU, where rows of bfloat16 take several times
      as long, and the folder's own elsewhere.

  Raises:
    FileNotFoundError: the path does not exist, or holds no model.
    ValueError, OSError, checkpoint.RestoreError: see the functions of the
      sources.
  """
  folder = _find(path)
  is_foreign = is_hugging_face(folder)
  if not (is_foreign or (folder / 'config.json').is_file()):
    quantization = None if stacked else quantization
    return from_export(path, tokenizer, quantization, dtype)
  if tokenizer is not None:
    raise ValueError(
      f'--tokenizer={tokenizer}: {path} says which tokenizer it has; only an'
      ' exported file needs one.'
    )
  if is_foreign:
    return from_hugging_face(path, quantization, stacked, dtype)
  return from_workdir(path)


def _find(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the path of a model; FileNotFoundError, ValueError: of none."""
  addresses.refuse(path, str(path))
  folder = pathlib.Path(path)
  if not folder.exists():
    raise FileNotFoundError(f'{path}: no such file or folder.')
  named = 'config.json', 'model.safetensors'
  if folder.is_dir() and not any((folder / one).is_file() for one in named):
    raise FileNotFoundError(
      f'{path}: holds no model; expected a workdir with config.json and'
      ' checkpoints, an export, a folder of Hugging Face files, or a GGUF'
      ' file.'
    )
  return folder


def from_workdir(path: str | os.PathLike[str]) -> Loaded:
  """Returns the model of a run's latest whole checkpoint.

  It writes nothing there; the run may still be training.

  Raises:
    FileNotFoundError: there is no workdir, or no checkpoint in it.
    checkpoint.RestoreError: no checkpoint can be read.
    ValueError: the path is an address, or this code cannot read `config.json`.
  """
  import jax

  from kaiju_jax.model import transformer
  from kaiju_jax.training import checkpoint
  from kaiju_jax.training import state

  experiment = workdir_lib.load_experiment(path)
  if experiment.lora.rank:
    return attach_adapters(path)
  hook = state.hook_of(experiment)

  def start(params):
    replica = {} if hook is None else {'replica': hook.start(params)}
    return {'params': params, **replica}

  shapes = transformer.parameter_shapes(experiment.model)
  found, step = checkpoint.load(path, jax.eval_shape(start, shapes))
  return _describe_workdir(path, experiment)._replace(
    params=found['params'],
    replica=found.get('replica'),
    origin=f'{path}, step {step:,}',
    step=step,
  )


def _describe_workdir(
  path: str | os.PathLike[str], experiment: experiment_lib.Experiment
) -> Loaded:
  """Returns a run's model without parameters."""
  return Loaded(
    None,
    experiment.model,
    None,
    tokenizer_of(path, experiment.data.tokenizer),
    str(path),
    experiment,
    chats=experiment.data.chat_template,
  )


def tokenizer_of(path: str | os.PathLike[str], named: str) -> str:
  """Returns the path of a run's tokenizer; '' for bytes.

  Args:
    path: the run's workdir. A tokenizer in it has precedence, because it moves
      with the workdir.
    named: the tokenizer that the run's experiment names.
  """
  from kaiju_jax.interchange import tokens

  own = pathlib.Path(path) / tokens.FILE
  return str(own) if named and own.is_file() else named


def attach_adapters(
  path: str | os.PathLike[str], base_path: str | os.PathLike[str] = ''
) -> Loaded:
  """Returns a run's base with the adapters of its latest checkpoint.

  Args:
    path: the workdir of a run with adapters.
    base_path: where the base lies; by default where the run found it.

  Raises:
    FileNotFoundError, ValueError, OSError, checkpoint.RestoreError: as
      `from_workdir` and `base`; or the base is not the run's.
  """
  import jax

  from kaiju_jax.model import lora
  from kaiju_jax.objectives import objective
  from kaiju_jax.training import checkpoint
  from kaiju_jax.training import frozen_model
  from kaiju_jax.training import state

  experiment = workdir_lib.load_experiment(path)
  if not experiment.lora.rank:
    raise ValueError(f'{path}: has lora.rank=0: it is no run with adapters.')
  base_path = base_path or workdir_lib.find_base(experiment.begin_with)
  found = base(base_path, experiment.model.dtype)
  frozen_model.check(path, digest(found), found.origin, is_new=False)
  trained, frozen = lora.split(state.attach(experiment, found.params))
  shapes = jax.eval_shape(lambda: trained)
  restored, step = checkpoint.load(path, {'params': shapes})
  return found._replace(
    params=objective.join(restored['params'], frozen),
    content='',
    config=experiment.model,
    origin=f'{path}, step {step:,}, beside {base_path}',
    experiment=experiment,
    step=step,
  )


def from_export(
  path: str | os.PathLike[str],
  tokenizer: str | None = None,
  quantization: quantization_config.QuantizationConfig | None = None,
  dtype: str = '',
) -> Loaded:
  """Returns the model of an export (`interchange/own.py`).

  Args:
    path: a folder in our own format, or its file of weights alone.
    tokenizer: path of its `tokenizer.json`; '' for bytes. By default the
      folder's own, or bytes if there is none.
    quantization: as `from_anywhere`, for the codes of an import; other exports
      have their own.
    dtype: as `from_anywhere`, for an import.

  Raises:
    OSError, ValueError: the file is missing, or is no export; or see
      `coded.read`.
  """
  from kaiju_jax.interchange import coded
  from kaiju_jax.interchange import generation
  from kaiju_jax.interchange import own
  from kaiju_jax.interchange import tokens

  file = pathlib.Path(path)
  # `exchange.read` writes this file, and exports of our runs have none.
  is_ours = not (file / generation.FILE).is_file()
  if file.is_dir():
    if tokenizer is None and (file / tokens.FILE).exists():
      tokenizer = str(file / tokens.FILE)
    file = file / own.WEIGHTS
  content = ''
  if quantization is not None and coded.is_coded(file):
    dtype = choose_dtype(dtype)
    params, config, content = coded.read(file, quantization, dtype)
  else:
    params, config = own.load(file)
    if not is_ours:
      dtype = choose_dtype(dtype) or config.dtype
      config = dataclasses.replace(config, dtype=dtype)
  return Loaded(
    params,
    config,
    None,
    tokenizer or '',
    str(path),
    chats='' if is_ours else str(path),
    is_ours=is_ours,
    content=content,
  )


def is_hugging_face(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path is a Hugging Face folder, or a GGUF file."""
  from kaiju_jax.interchange.gguf import folder as gguf_folder

  addresses.refuse(path, str(path))
  if gguf_folder.is_gguf(path):
    return True
  config = pathlib.Path(path) / 'config.json'
  if not config.is_file():
    return False
  fields = files.read_json(config)
  return isinstance(fields, dict) and 'model_type' in fields


def from_hugging_face(
  path: str | os.PathLike[str],
  quantization: quantization_config.QuantizationConfig | None = None,
  stacked: bool = False,
  dtype: str = '',
) -> Loaded:
  """Returns the model of a Hugging Face folder.

  Args:
    path, quantization, dtype: as `from_anywhere`.
    stacked: whether the quantized model is to be read by whole forward passes
      (`Transformer`), as a teacher is, instead of decoding.

  Raises:
    OSError, ValueError: see `hugging_face.read`.
  """
  from kaiju_jax.interchange import hugging_face
  from kaiju_jax.interchange import stream
  from kaiju_jax.interchange.families import registry
  from kaiju_jax.interchange.gguf import folder as gguf_folder

  form = stream.MASTERS
  if quantization is not None:
    form = stream.DEPLOYED if stacked else stream.form_for_decoding()
  dtype = choose_dtype(dtype)
  has_codes = quantization and quantization_config.has_codes(quantization)
  params, config = hugging_face.read(
    path, (), form, quantization, dtype, rotated=bool(has_codes and not stacked)
  )
  fields = files.read_json(gguf_folder.small_files(path) / 'config.json')
  found = _describe_folder(path, config)
  return found._replace(params=params, is_ours=registry.read(fields).is_ours)


def _describe_folder(
  path: str | os.PathLike[str], config: model_config.ModelConfig
) -> Loaded:
  """Returns a Hugging Face folder's model without parameters."""
  from kaiju_jax.interchange import tokens

  file = tokens.find(pathlib.Path(path), config.vocab_size)
  chats = str(path) if file else ''
  return Loaded(None, config, None, file, str(path), chats=chats)


def choose_dtype(given: str) -> str:
  """Returns the dtype of a folder's activations; '' for the folder's own."""
  from kaiju_jax.kernels import dispatch

  return given or ('float32' if dispatch.platform() == 'cpu' else '')


def describe(path: str | os.PathLike[str]) -> Loaded:
  """Returns what `from_anywhere` returns, without parameters.

  The model of a Hugging Face folder has no int8.

  Raises:
    FileNotFoundError, ValueError, OSError: as `from_anywhere`.
  """
  from kaiju_jax.interchange import generation
  from kaiju_jax.interchange import hugging_face
  from kaiju_jax.interchange import own
  from kaiju_jax.interchange import tokens

  folder = _find(path)
  if is_hugging_face(folder):
    config = hugging_face.read_config(
      path, quantization_config.none(), choose_dtype('')
    )
    return _describe_folder(path, config)
  weights = folder / own.WEIGHTS if folder.is_dir() else folder
  if not weights.is_file():
    return _describe_workdir(path, workdir_lib.load_experiment(path))
  file = folder / tokens.FILE
  return Loaded(
    None,
    own.load_config(weights),
    None,
    str(file) if file.is_file() else '',
    str(path),
    chats=str(path) if (folder / generation.FILE).is_file() else '',
  )


def base(path: str | os.PathLike[str], dtype: str) -> Loaded:
  """Returns a model as adapters stand beside it: its codes, stacked.

  A Hugging Face folder's products, tables, keys and values become int8. A model
  of ours without int8 keeps its floats.

  Args:
    path: as for `from_anywhere`.
    dtype: of the activations of a Hugging Face folder's model.

  Raises:
    FileNotFoundError, ValueError, OSError: as `from_anywhere`; or the model is
      itself a run with adapters.
  """
  from kaiju_jax.interchange import hugging_face
  from kaiju_jax.interchange import stream
  from kaiju_jax.model import deployed

  if is_hugging_face(pathlib.Path(path)):
    arm = quantization_config.for_serving()
    params, config = hugging_face.read(path, (), stream.DEPLOYED, arm, dtype)
    found = _describe_folder(path, config)
    return found._replace(params=params, is_ours=False)
  config = base_config(path, dtype)
  found = from_anywhere(path)
  params = found.params
  if not deployed.is_deployed(params):
    params = deployed.quantize(params, found.config, found.replica)
  return found._replace(params=params, config=config, replica=None)


def base_config(
  path: str | os.PathLike[str], dtype: str
) -> model_config.ModelConfig:
  """Returns the config of `base`'s model, without its parameters.

  Raises:
    FileNotFoundError, ValueError, OSError: as `base`.
  """
  from kaiju_jax.interchange import hugging_face
  from kaiju_jax.interchange import own
  from kaiju_jax.training import frozen_model

  folder = pathlib.Path(path)
  if is_hugging_face(folder):
    return hugging_face.read_config(
      path, quantization_config.for_serving(), dtype
    )
  if not (folder / 'config.json').is_file():
    return own.load_config(folder / own.WEIGHTS if folder.is_dir() else folder)
  experiment = workdir_lib.load_experiment(path)
  frozen_model.refuse_adapters(path, experiment)
  config = experiment.model
  quantization = config.quantization
  if quantization.wire_weights == 'ternary':
    quantization = dataclasses.replace(quantization, wire_weights='int8')
  return dataclasses.replace(config, quantization=quantization)
