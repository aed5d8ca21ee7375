"""Loads or draws the parameters with which a run starts (`start.py`).

What `begin_with` names is

a workdir    the parameters of its latest checkpoint, whose model must have the
             same shapes
an export    float weights by their names: an imported model's, or those
             that `experiments.uptrain` made of a teacher. The model of the
             run may add windows, sinks and int8, which change no weight.
a folder     of Hugging Face files, read as an import is

Bungee's scalars, sink logits and channels' running limits start as in a new
model if the workdir or the export lacks them.
"""

from collections.abc import Mapping
import os
import pathlib
from typing import Any

import jax

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.evaluation import induction
from kaiju_jax.interchange import own
from kaiju_jax.interchange import plain
from kaiju_jax.interchange import tokens
from kaiju_jax.interchange.gguf import folder as gguf_folder
from kaiju_jax.interchange.surgery import check as surgery
from kaiju_jax.model import config as model_config
from kaiju_jax.model import deployed
from kaiju_jax.model import depth_scaled
from kaiju_jax.model import layers
from kaiju_jax.model import lora
from kaiju_jax.model import transformer
from kaiju_jax.objectives import attention_alignment
from kaiju_jax.objectives import language
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.runs import load
from kaiju_jax.runs import uptrain
from kaiju_jax.sharding import rules
from kaiju_jax.training import checkpoint
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import frozen_model
from kaiju_jax.training import state as state_lib
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
  path: str | os.PathLike[str],
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
  file = gguf_folder.small_files(path) / tokens.FILE
  if file.exists():
    check_tokenizer(file, experiment.data.tokenizer)
  export = load.from_anywhere(path)
  held = export.params
  if deployed.is_deployed(held):
    raise ValueError(
      f'begin_with={str(path)!r}: holds int8 codes; training begins with the'
      " float32 masters of a workdir, of 'experiments.uptrain' or of a model"
      ' without int8. (Adapters train beside codes: lora.rank.)'
    )
  model = state_lib.model_of(experiment)
  shapes = transformer.parameter_shapes(experiment.model)
  try:
    missing = lacks_standard(shapes, held)
  except ValueError as error:
    cause = _cause(path, export.config, experiment.model)
    raise ValueError(f'begin_with={str(path)!r}: {cause}{error}') from error
  if missing:
    shapes = state_lib.init_params(model, experiment.seed, mesh)
  return _fill(shapes, held, mesh)


def initial(
  experiment: experiment_lib.Experiment, mesh: jax.sharding.Mesh
) -> Any:
  """Returns fresh parameters, drawn as `experiment.init` says."""
  model = state_lib.model_of(experiment)
  drawn = state_lib.init_params(model, experiment.seed, mesh)
  if experiment.init == 'scaled':
    return depth_scaled.scale(drawn, experiment.model)
  suggest = {'induction': induction.suggest, 'previous': induction.previous}
  return suggest[experiment.init](drawn, experiment.model, experiment.seed)


def attach_adapters(
  experiment: experiment_lib.Experiment,
  workdir: str | os.PathLike[str],
  mesh: jax.sharding.Mesh,
) -> Any:
  """Returns the base of a run with adapters beside it, on `mesh`.

  The adapters are new, or those of the run that `begin_with` names.

  Raises:
    OSError, ValueError, checkpoint.RestoreError: the base cannot be read, has
      another tokenizer, or is not the one with which the workdir's run began;
      or `begin_with` is a run with other adapters.
  """
  before = experiment.begin_with
  found = load.base(workdir_lib.find_base(before), experiment.model.dtype)
  _check_tokenizer_of(found, experiment)
  base = load.digest(found), found.origin
  frozen_model.check(workdir, *base, is_new=True)
  attached = state_lib.attach(experiment, found.params)
  if workdir_lib.find_base(before) != before:
    frozen_model.check(before, *base, is_new=False)
    trained, frozen = lora.split(attached)
    shapes = jax.eval_shape(lambda: trained)
    restored, _ = checkpoint.load(before, {'params': shapes})
    attached = objective_lib.join(restored['params'], frozen)
  return jax.device_put(attached, rules.shardings(attached, mesh))


def check_adapters(experiment: experiment_lib.Experiment) -> None:
  """Refuses adapters that the objective or the model has no place for.

  Raises:
    OSError, ValueError: names the field, its value and what would be right.
  """
  state_lib.objective_of(experiment)
  shapes = transformer.parameter_shapes(experiment.model)
  lora.choose(shapes, experiment.lora.matrices)


def read_teacher(
  experiment: experiment_lib.Experiment,
  workdir: str | os.PathLike[str],
  mesh: jax.sharding.Mesh,
) -> dict[str, Any]:
  """Returns the teacher of `attention_alignment`, under its name, on `mesh`.

  Its parameters are float32. It is read whenever the run starts or resumes.

  Raises:
    OSError, ValueError: the teacher cannot be read, is not the one that the
      config describes or with which the workdir's run began, is none of the
      student, or has another tokenizer.
  """
  given = experiment.objective.attention_alignment
  found = load.from_anywhere(given.teacher)
  surgery.check(found.config, experiment.model)
  _check_tokenizer_of(found, experiment)
  config = attention_alignment.teacher_of(given, experiment.model)
  theirs, ours = (
    {
      'layout': layers.draw(one.layers()),
      'num_kv_heads': one.num_kv_heads,
      'window': sorted({x.window for x in one.layers() if x.window}),
    }
    for one in (found.config, config)
  )
  for name, value in theirs.items():
    if value != ours[name]:
      raise ValueError(
        f'objective.attention_alignment.{name}={ours[name]!r}: must be'
        f' {value!r}, as {given.teacher} has.'
      )
  teacher = load.digest(found), found.origin
  start = pathlib.Path(experiment.begin_with)
  # Starts of an earlier version have no digest.
  if is_export(start) and (start / 'teacher.json').is_file():
    frozen_model.check(start, *teacher, is_new=False, role='teacher')
  frozen_model.check(workdir, *teacher, is_new=True, role='teacher')
  weights = plain.weights(found.params, found.config, found.replica)
  read = plain.params(weights, config)
  stored = jax.device_put(read, rules.shardings(read, mesh))
  return {attention_alignment.TEACHER: stored}


def split_teacher(
  params: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns the student's parameters and the teacher's, by top-level name."""
  name = attention_alignment.TEACHER
  student = {key: params[key] for key in params if key != name}
  return student, {name: params[name]}


def _params_of_run(experiment, path: pathlib.Path, mesh) -> Any:
  """Returns the parameters of another run's model, of the same shapes."""
  before = workdir_lib.load_experiment(path)
  frozen_model.refuse_adapters(path, before)
  shapes = state_lib.abstract(experiment, mesh, language.OBJECTIVE).params
  has = transformer.parameter_shapes(before.model)
  held = checkpoint.load(path, {'params': _omit_standard(shapes, has)})
  held = held[0]['params']
  if jax.tree.structure(held) == jax.tree.structure(shapes):
    return held
  fresh = state_lib.init_params(
    state_lib.model_of(experiment), experiment.seed, mesh
  )
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


def _check_tokenizer_of(
  found: load.Loaded, experiment: experiment_lib.Experiment
) -> None:
  """Refuses a run whose tokenizer is not that of its frozen model."""
  if found.tokenizer:
    check_tokenizer(pathlib.Path(found.tokenizer), experiment.data.tokenizer)


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
  return name.startswith(('bungee_', 'sink_logit_')) or name.endswith(
    '_limit_K'
  )
