"""Loads the parameters with which a run begins instead of fresh ones.

a workdir    the parameters of its latest checkpoint, whose model must have the
             same shapes
an export    float weights by their names: an imported model's, or those
             that `experiments.uptrain` made of a teacher. The model of the
             run may add windows and int8, which change no weight.
a folder     of Hugging Face files, read as an import is

Bungee's scalars and channels' running limits start as in a new model if the
workdir or the export lacks them.
"""

from collections.abc import Mapping
import os
import pathlib
from typing import Any

import jax

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.interchange import generation
from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange import own
from kaiju_jax.interchange import tokens
from kaiju_jax.model import config as model_config
from kaiju_jax.model import deployed
from kaiju_jax.model import layers
from kaiju_jax.model import transformer
from kaiju_jax.objectives import language
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import load
from kaiju_jax.runs import uptrain
from kaiju_jax.sharding import rules
from kaiju_jax.training import checkpoint
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import state
from kaiju_jax.training import workdir as workdir_lib

# The fields that determine which weights there are, beside the layers.
_SHAPES = (
  'vocab_size',
  'd_model',
  'num_heads',
  'num_kv_heads',
  'head_dim',
  'd_ff',
  'shared',
  'tied_embedding',
  'scaled_embedding',
  'feedforward',
  'norms',
  'qk_norm',
  'qkv_bias',
)


def params(
  experiment: experiment_lib.Experiment,
  path: str | os.PathLike,
  mesh: jax.sharding.Mesh,
) -> Any:
  """Returns the parameters at `path`, stored over `mesh`.

  Args:
    experiment: the experiment of the new run.
    path: a workdir, an export's folder or file, or a Hugging Face folder.
    mesh: the mesh of the run.

  Raises:
    OSError, ValueError, checkpoint.RestoreError: the path cannot be read, or
      its model or tokenizer does not fit the run.
  """
  path = pathlib.Path(path)
  if not (is_export(path) or load.is_hugging_face(path)):
    _check_run_tokenizer(path, experiment.data.tokenizer)
    return _params_of_run(experiment, path, mesh)
  if path.is_dir() and (path / tokens.FILE).exists():
    check_tokenizer(path / tokens.FILE, experiment.data.tokenizer)
  export = load.from_anywhere(path)
  held = export.params
  if deployed.is_deployed(held):
    raise ValueError(
      f'begin_with={str(path)!r}: holds int8 codes; training begins with the'
      " float32 masters of a workdir, of 'experiments.uptrain' or of a model"
      ' without int8. (Adapters train beside codes: lora.rank.)'
    )
  model = state.model_of(experiment)
  shapes = transformer.parameter_shapes(experiment.model)
  try:
    missing = lacks_standard(shapes, held)
  except ValueError as error:
    cause = _cause(path, export.config, experiment.model)
    raise ValueError(f'begin_with={str(path)!r}: {cause}{error}') from error
  if missing:
    shapes = state.init_params(model, experiment.seed, mesh)
  return _fill(shapes, held, mesh)


def describe(path: str | os.PathLike) -> load.Loaded:
  """Returns what `load.from_anywhere` returns, without parameters.

  The model of a Hugging Face folder has no int8.

  Raises:
    FileNotFoundError, ValueError, OSError: as `load.from_anywhere`.
  """
  folder = pathlib.Path(path)
  if load.is_hugging_face(folder):
    config = hugging_face.read_config(
      path, quantization_config.none(), load.choose_dtype('')
    )
    file = tokens.find(folder, config.vocab_size)
    chats = str(path) if file else ''
    return load.Loaded(None, config, None, file, str(path), chats=chats)
  if (folder / own.WEIGHTS).is_file():
    config = own.load_config(folder / own.WEIGHTS)
    file = folder / tokens.FILE
    return load.Loaded(
      None,
      config,
      None,
      str(file) if file.is_file() else '',
      str(path),
      chats=str(path) if (folder / generation.FILE).is_file() else '',
    )
  experiment = workdir_lib.load_experiment(path)
  return load.Loaded(
    None,
    experiment.model,
    None,
    load.tokenizer_of(path, experiment.data.tokenizer),
    str(path),
    experiment,
    chats=experiment.data.chat_template,
  )


def _params_of_run(experiment, path: pathlib.Path, mesh) -> Any:
  """Returns the parameters of another run's model, of the same shapes."""
  before = workdir_lib.load_experiment(path)
  load.refuse_adapters(path, before)
  shapes = state.abstract(experiment, mesh, language.OBJECTIVE).params
  has = transformer.parameter_shapes(before.model)
  held = checkpoint.load(path, {'params': _omit_standard(shapes, has)})
  held = held[0]['params']
  if jax.tree.structure(held) == jax.tree.structure(shapes):
    return held
  fresh = state.init_params(state.model_of(experiment), experiment.seed, mesh)
  return _fill(fresh, held, mesh)


def _fill(shapes: Any, held: Any, mesh: jax.sharding.Mesh) -> Any:
  """Returns `held` with what it lacks of `shapes`, stored over `mesh`."""
  given = dict(jax.tree_util.tree_leaves_with_path(held))
  started = jax.tree_util.tree_map_with_path(
    lambda place, leaf: given.get(place, leaf), shapes
  )
  return jax.device_put(started, rules.shardings(started, mesh))


def _omit_standard(shapes: Any, has: Any) -> Any:
  """Returns `shapes` without what starts alike in every model and `has` lacks.

  Args:
    shapes: the tree of the run's parameters.
    has: the tree of the other run's parameters.
  """
  if not isinstance(shapes, Mapping):
    return shapes
  return {
    name: _omit_standard(x, has.get(name, {}))
    for name, x in shapes.items()
    if name in has or not _starts_alike(name)
  }


def _cause(
  path: pathlib.Path,
  theirs: model_config.ModelConfig,
  ours: model_config.ModelConfig,
) -> str:
  """Names the fields by which the two models' weights differ, and a remedy."""
  pairs = {
    f'model.{name}': (getattr(theirs, name), getattr(ours, name))
    for name in _SHAPES
  }
  pairs['layers'] = tuple(layers.draw(one.layers()) for one in (theirs, ours))
  apart = [
    f'{name} {theirs} there, {ours} in this run'
    for name, (theirs, ours) in pairs.items()
    if theirs != ours
  ]
  if not apart:
    return ''
  file = path / uptrain.CONFIG
  remedy = f'--config={file} has its model. ' if file.is_file() else ''
  return f'holds another model: {"; ".join(apart)}. {remedy}'


def is_export(path: pathlib.Path) -> bool:
  """Returns whether `path` is an export's file or folder, not a workdir."""
  if path.is_dir():
    return (path / own.WEIGHTS).exists() and not (path / 'config.json').exists()
  return path.is_file()


def _check_run_tokenizer(path: pathlib.Path, name: str) -> None:
  """Refuses another tokenizer than that of a run, unless its file is gone."""
  named = workdir_lib.load_experiment(path).data.tokenizer
  theirs = load.tokenizer_of(path, named)
  if theirs and name and pathlib.Path(theirs).is_file():
    check_tokenizer(pathlib.Path(theirs), name)
  elif bool(theirs) != bool(name):
    raise ValueError(
      f'data.tokenizer={name!r}: is another tokenizer than {theirs!r}, which'
      f' the model of begin_with={str(path)!r} was trained with.'
    )


def check_tokenizer(file: pathlib.Path, name: str) -> None:
  """Refuses a run whose `data.tokenizer` is not that of its model.

  Args:
    file: the model's tokenizer.json.
    name: the run's `data.tokenizer`.

  Raises:
    ValueError: the two differ in use.
  """
  theirs, ours = (tokenizer_lib.load(one) for one in (str(file), name))
  if tokenizer_lib.hash_use(theirs) != tokenizer_lib.hash_use(ours):
    raise ValueError(
      f'data.tokenizer={name!r}: is another tokenizer than {file}, which the'
      ' model was trained with.'
    )


def lacks_standard(shapes: Any, held: Any) -> bool:
  """Returns whether `held` lacks parameters that start alike in every model.

  Args:
    shapes: the tree of the run's parameters.
    held: the tree of the export's parameters.

  Raises:
    ValueError: only one tree has some other weight, or its shapes differ.
  """
  given, due = (
    {
      place: list(leaf.shape)
      for place, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    for tree in (held, shapes)
  )
  missing = False
  for place in [*due, *(place for place in given if place not in due)]:
    if given.get(place) == due.get(place):
      continue
    if place not in given and _starts_alike(rules.name_of(place)):
      missing = True
      continue
    has, wanted = (
      'nothing' if shape is None else f'the shape {shape}'
      for shape in (given.get(place), due.get(place))
    )
    name = jax.tree_util.keystr(place, simple=True, separator='.')
    raise ValueError(
      f'{name}: has {has}, the model of this run asks for {wanted}.'
    )
  return missing


def _starts_alike(name: str) -> bool:
  """Returns whether a parameter starts the same in every model that has it."""
  return name.startswith('bungee_') or name.endswith('_limit_K')
