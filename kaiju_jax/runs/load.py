"""Loads a trained model from a workdir, an export or a Hugging Face folder.

It does not read Adam's moments, which are two thirds of a checkpoint.
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
from kaiju_jax.storage import strict
from kaiju_jax.training import experiment as experiment_lib


class Loaded(NamedTuple):
  """A model and its source.

  Attributes:
    params: float32 master weights, an export's codes, or what decoding reads.
    config: the model's config.
    replica: with ternary updates, the int8 weights that the forward pass reads
      instead of the masters; None otherwise.
    tokenizer: path of its `tokenizer.json`, '' for bytes.
    origin: a description of the source, such as 'runs/tiny, step 400'.
    experiment: the run's experiment; None without a workdir.
    step: optimizer steps taken; None without a workdir.
    chats: the folder of Hugging Face files whose chat template and settings
      of sampling the model may have been trained with; '' without one.
    is_ours: whether this project trained it, so that it may know our own chat
      format.
    content: the digest of the file that `params` were read from, where all of
      its bytes were hashed as they were read; '' otherwise.
  """

  params: Any
  config: model_config.ModelConfig
  replica: Any
  tokenizer: str
  origin: str
  experiment: experiment_lib.Experiment | None = None
  step: int | None = None
  chats: str = ''
  is_ours: bool = True
  content: str = ''


def variables(loaded: Loaded) -> dict[str, Any]:
  """Returns a model's collections, as `Transformer.apply` takes them."""
  from kaiju_jax.wire import ternary_plan

  return {
    'params': loaded.params,
    **ternary_plan.collections(loaded.replica),
  }


def config_and_variables(
  loaded: Loaded,
) -> tuple[model_config.ModelConfig, dict[str, Any]]:
  """Returns a model's config and its `variables`."""
  return loaded.config, variables(loaded)


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


def base(path: str | os.PathLike, dtype: str) -> Loaded:
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
  from kaiju_jax.interchange import tokens
  from kaiju_jax.model import deployed

  folder = pathlib.Path(path)
  if is_hugging_face(folder):
    arm = quantization_config.for_serving()
    params, config = hugging_face.read(path, (), stream.DEPLOYED, arm, dtype)
    file = tokens.find(folder, config.vocab_size)
    chats = str(path) if file else ''
    return Loaded(
      params, config, None, file, str(path), chats=chats, is_ours=False
    )
  config = base_config(path, dtype)
  found = from_anywhere(path)
  params = found.params
  if not deployed.is_deployed(params):
    params = deployed.quantize(params, found.config, found.replica)
  return found._replace(params=params, config=config, replica=None)


def base_config(
  path: str | os.PathLike, dtype: str
) -> model_config.ModelConfig:
  """Returns the config of `base`'s model, without its parameters.

  Raises:
    FileNotFoundError, ValueError, OSError: as `base`.
  """
  from kaiju_jax.interchange import hugging_face
  from kaiju_jax.interchange import own
  from kaiju_jax.training import workdir as workdir_lib

  folder = pathlib.Path(path)
  if is_hugging_face(folder):
    return hugging_face.read_config(
      path, quantization_config.for_serving(), dtype
    )
  if not (folder / 'config.json').is_file():
    return own.load_config(folder / own.WEIGHTS if folder.is_dir() else folder)
  experiment = workdir_lib.load_experiment(path)
  refuse_adapters(path, experiment)
  config = experiment.model
  quantization = config.quantization
  if quantization.wire_weights == 'ternary':
    quantization = dataclasses.replace(quantization, wire_weights='int8')
  return dataclasses.replace(config, quantization=quantization)


def refuse_adapters(
  path: str | os.PathLike, experiment: experiment_lib.Experiment
) -> None:
  """Raises ValueError where the run in a workdir has adapters."""
  if experiment.lora.rank:
    raise ValueError(
      f'begin_with={str(path)!r}: is itself a run with adapters; merge them'
      ' first (experiments.convert), and begin with that export.'
    )


def attach_adapters(
  path: str | os.PathLike, base_path: str | os.PathLike = ''
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
  from kaiju_jax.runs import same_model
  from kaiju_jax.training import checkpoint
  from kaiju_jax.training import state
  from kaiju_jax.training import workdir as workdir_lib

  experiment = workdir_lib.load_experiment(path)
  if not experiment.lora.rank:
    raise ValueError(f'{path}: has lora.rank=0: it is no run with adapters.')
  base_path = base_path or workdir_lib.find_base(experiment.begin_with)
  found = base(base_path, experiment.model.dtype)
  same_model.check(path, digest(found), found.origin, is_new=False)
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


def is_hugging_face(folder: pathlib.Path) -> bool:
  """Returns whether a path is a Hugging Face folder."""
  from kaiju_jax.storage import addresses
  from kaiju_jax.storage import files

  addresses.refuse(folder, str(folder))
  config = folder / 'config.json'
  if not config.is_file():
    return False
  fields = files.read_json(config)
  return isinstance(fields, dict) and 'model_type' in fields


def from_workdir(path: str | os.PathLike) -> Loaded:
  """Returns the model of a run's latest whole checkpoint.

  It writes nothing there; the run may still be training.

  Raises:
    FileNotFoundError: there is no workdir, or no checkpoint in it.
    checkpoint.RestoreError: no checkpoint can be read.
    ValueError: the path is an address, or this code cannot read `config.json`.
  """
  import jax

  from kaiju_jax.model import transformer
  from kaiju_jax.sharding import mesh as mesh_lib
  from kaiju_jax.training import checkpoint
  from kaiju_jax.training import replicas
  from kaiju_jax.training import workdir as workdir_lib

  experiment = workdir_lib.load_experiment(path)
  if experiment.lora.rank:
    return attach_adapters(path)

  def start(params):
    plan = replicas.plan_of(experiment, params)
    if plan is None:
      return {'params': params}
    replica = replicas.start(plan, params, mesh_lib.single())
    return {'params': params, 'replica': replica}

  shapes = transformer.parameter_shapes(experiment.model)
  found, step = checkpoint.load(path, jax.eval_shape(start, shapes))
  return Loaded(
    found['params'],
    experiment.model,
    found.get('replica'),
    tokenizer_of(path, experiment.data.tokenizer),
    f'{path}, step {step:,}',
    experiment,
    step,
    experiment.data.chat_template,
  )


def tokenizer_of(path: str | os.PathLike, named: str) -> str:
  """Returns the path of a run's tokenizer; '' for bytes.

  Args:
    path: the run's workdir. A tokenizer in it has precedence, because it moves
      with the workdir.
    named: the tokenizer that the run's experiment names.
  """
  from kaiju_jax.interchange import tokens

  own = pathlib.Path(path) / tokens.FILE
  return str(own) if named and own.is_file() else named


def from_export(
  path: str | os.PathLike,
  tokenizer: str | None = None,
  quantization: quantization_config.QuantizationConfig | None = None,
  dtype: str = '',
) -> Loaded:
  """Returns the model of an export (`interchange/own.py`).

  Args:
    path: the path of the folder that `exchange.export` wrote in our own format,
      or of the weights' file alone.
    tokenizer: path of the `tokenizer.json` that the model was trained with; ''
      for bytes. By default the folder's own, or bytes if there is none.
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


def from_anywhere(
  path: str | os.PathLike,
  tokenizer: str | None = None,
  quantization: quantization_config.QuantizationConfig | None = None,
  stacked: bool = False,
  dtype: str = '',
) -> Loaded:
  """Returns the model of a workdir, an export, or a Hugging Face folder.

  Args:
    path: the folder of a run, the folder or the file of an export in our own
      format, or a folder of Hugging Face files (`interchange/hugging_face.py`).
    tokenizer: see `from_export`; must be None for other sources.
    quantization: how the model of a Hugging Face folder is quantized, to decode
      alone; None for float32 masters. It is also for the codes that an import
      kept (`coded.py`); other sources have their own.
    stacked: whether the quantized model of a Hugging Face folder is to be read
      by whole forward passes instead (`Transformer`), as a teacher is.
    dtype: of the activations of a Hugging Face folder's model, or of an import
      of one; '' for float32 on a CPU, where rows of bfloat16 take several times
      as long, and the folder's own elsewhere.

  Raises:
    FileNotFoundError: the path does not exist, or holds no model.
    ValueError, OSError, checkpoint.RestoreError: as `from_workdir`,
      `from_export` and `hugging_face.read`.
  """
  from kaiju_jax.storage import addresses
  from kaiju_jax.storage import files

  addresses.refuse(path, str(path))
  folder = pathlib.Path(path)
  if not folder.exists():
    raise FileNotFoundError(f'{path}: no such file or folder.')
  config = folder / 'config.json'
  if not config.is_file():
    if folder.is_dir() and not (folder / 'model.safetensors').is_file():
      raise FileNotFoundError(
        f'{path}: holds no model; expected a workdir with config.json and'
        ' checkpoints, an export, or a folder of Hugging Face files.'
      )
    quantization = None if stacked else quantization
    return from_export(path, tokenizer, quantization, dtype)
  if tokenizer is not None:
    raise ValueError(
      f'--tokenizer={tokenizer}: {path} says which tokenizer it has; only an'
      ' exported file needs one.'
    )
  fields = files.read_json(config)
  if not (isinstance(fields, dict) and 'model_type' in fields):
    return from_workdir(path)
  from kaiju_jax.interchange import hugging_face
  from kaiju_jax.interchange import stream
  from kaiju_jax.interchange import tokens
  from kaiju_jax.interchange.families import registry

  form = stream.MASTERS
  if quantization is not None:
    form = stream.DEPLOYED if stacked else stream.form_for_decoding()
  dtype = choose_dtype(dtype)
  params, model = hugging_face.read(path, (), form, quantization, dtype)
  own_tokenizer = tokens.find(folder, model.vocab_size)
  return Loaded(
    params,
    model,
    None,
    own_tokenizer,
    str(path),
    chats=str(path) if own_tokenizer else '',
    is_ours=registry.read(fields).is_ours,
  )


def choose_dtype(given: str) -> str:
  """Returns the dtype of a folder's activations; '' for the folder's own."""
  from kaiju_jax.kernels import dispatch

  return given or ('float32' if dispatch.platform() == 'cpu' else '')
