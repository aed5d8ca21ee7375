"""Brings parts of one's own: objectives, tasks, and functions of layers.

A config file, or the module of an installed package's entry point in the group
`kaiju_jax.parts`, holds them by name (`storage/parts.py`):

    @dataclasses.dataclass
    class Settings:
      gamma: float = 2.0

    def focal(experiment): …  # Returns an `objective.Objective`.

    OBJECTIVES = {'focal': focal}
    SETTINGS = Settings  # Of `experiment.parts.settings`.

A run that uses one of them records source and digest in its config.json, and
goes on only with the same digest. All its parts come from one source. Modules
that the source imports have no part in the digest.

This executes code. So only what trains does it, and reading a config file that
the command line names: no reader of a workdir or an export does so by itself.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import functools
import hashlib
from importlib import metadata
import inspect
import operator
import os
import pathlib
import sys
import traceback
import types
from typing import Any
from typing import NamedTuple

from kaiju_jax.model import config as model_config
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.storage import parts as parts_lib
from kaiju_jax.storage import strict
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.training import experiment as experiment_lib

GROUP = 'kaiju_jax.parts'
_OURS = {
  'objective.name': objective_config.NAMES,
  'data.task': tuple(tasks.TASKS),
  'model.feedforward': model_config.FEEDFORWARDS,
}
# What a part's functions, and those of a task, take.
_EXPERIMENT = 'OBJECTIVES', 'check', 'load', 'common_rows'
_TAKES = {
  **dict.fromkeys(_EXPERIMENT, ('experiment',)),
  **dict.fromkeys(('ACTIVATIONS', 'GATES'), ('hidden_BLF',)),
  'texts': ('experiment', 'count'),
}


@dataclasses.dataclass
class _NoSettings:
  """The settings of a source without any."""


class Brought(NamedTuple):
  """What one source brings."""

  source: str  # An absolute path, or the name of an entry point.
  # Of the file's bytes, or the distribution and its version.
  digest: str
  held: Mapping[str, Mapping[str, Any]]  # {kind: {name: part}}.
  settings: type  # The dataclass of its settings.

  def has(self, names: Mapping[str, str]) -> bool:
    """Returns whether all parts come from here; `names` is as `find_used`."""
    kinds = parts_lib.FIELDS.items()
    return all(
      any(name in self.held[kind] for kind, named in kinds if named == field)
      for field, name in names.items()
    )


def find_used(experiment: experiment_lib.Experiment) -> dict[str, str]:
  """Returns {field: name} of the parts that are none of ours."""
  names = {field: operator.attrgetter(field)(experiment) for field in _OURS}
  return {field: x for field, x in names.items() if x not in _OURS[field]}


def bring(source: str) -> Brought:
  """Executes a source, and puts its parts into the table.

  Raises:
    ValueError: it cannot be read or executed, or has a part of one of our
      names or of another signature.
  """
  is_path = os.sep in source or source.endswith('.py')
  read = _read_file if is_path else _read_point
  module, source, digest = read(source)
  held = {kind: getattr(module, kind, {}) for kind in parts_lib.FIELDS}
  settings = getattr(module, 'SETTINGS', _NoSettings)
  with one_line(f'{source}: SETTINGS', source):
    strict.dump(settings())
  for kind, brought in held.items():
    if not isinstance(brought, Mapping):
      raise ValueError(f'{source}: {kind} must be a dict of parts by name.')
    for name, part in brought.items():
      _check_part(f'{source}: {kind}[{name!r}]', kind, name, part, held)
  for kind, brought in held.items():
    parts_lib.hold(kind, brought)
  return Brought(source, digest, held, settings)


def of_config(
  experiment: experiment_lib.Experiment, path: str
) -> experiment_lib.Experiment:
  """Returns a config file's experiment, with the file as source of its parts.

  Raises:
    ValueError: see `bring`.
  """
  parts = experiment.parts
  if not parts.source:
    text = pathlib.Path(path).read_bytes()
    if not any(kind.encode() in text for kind in parts_lib.FIELDS):
      return experiment
    parts = dataclasses.replace(parts, source=os.path.abspath(path))
  found = bring(parts.source)
  if parts.settings is None:
    parts = dataclasses.replace(parts, settings=found.settings())
  return dataclasses.replace(experiment, parts=parts)


def resolve(
  experiment: experiment_lib.Experiment,
) -> experiment_lib.Experiment:
  """Returns the experiment with source, digest and settings of its parts.

  An experiment without parts of its own has none of the three.

  Raises:
    ValueError: see `bring`; the source has another digest than the experiment
      names; the settings are not those of the source; or two packages have what
      the source lacks.
  """
  parts, names = experiment.parts, find_used(experiment)
  if not names:
    none = experiment_lib.PartsConfig()
    return dataclasses.replace(experiment, parts=none)
  found = bring(parts.source) if parts.source else None
  if found is None or not found.has(names):
    found = _find_installed(names) or found
  if found is None:
    return experiment  # Whoever reads the field lists the names there are.
  if parts.digest not in ('', found.digest):
    raise ValueError(
      f'parts.digest={parts.digest!r}: {found.source} has {found.digest!r} now.'
      ' Bring back the earlier one to go on with this run, or start another.'
    )
  given = parts.settings
  plain = strict.dump(given) if dataclasses.is_dataclass(given) else given
  settings = strict.parse(found.settings, plain or {}, 'parts.settings')
  own = experiment_lib.PartsConfig(found.source, found.digest, settings)
  return dataclasses.replace(experiment, parts=own)


def _read_file(source: str) -> tuple[Any, str, str]:
  """Returns the module, its absolute path, and the digest of its bytes."""
  path = os.path.abspath(source)
  try:
    text = pathlib.Path(path).read_bytes()
  except OSError as error:
    raise ValueError(
      f'parts.source={path!r}: cannot be read ({error.strerror});'
      ' --config.parts.source=PATH says where the file is now.'
    ) from error
  digest = f'sha256:{hashlib.sha256(text).hexdigest()}'
  return execute(path, text), path, digest


@functools.lru_cache(16)
def execute(path: str, text: bytes) -> Any:
  """Returns the module of the very bytes that the digest is of."""
  name = f'{pathlib.Path(path).stem}_{hashlib.sha256(text).hexdigest()[:8]}'
  module = types.ModuleType(name)
  module.__file__ = path
  sys.modules[name] = module  # Dataclasses and pickle look there.
  with one_line(path, path):
    exec(compile(text, path, 'exec'), vars(module))
  return module


def _read_point(source: str) -> tuple[Any, str, str]:
  """Returns the module, the entry point's name, and the package's version."""
  known = metadata.entry_points(group=GROUP)
  points = [point for point in known if point.name == source]
  if len(points) != 1:
    names = ', '.join(sorted(point.name for point in known)) or 'none'
    raise ValueError(
      f'parts.source={source!r}: must be a path, or one entry point of the'
      f' group {GROUP}; there are {names}.'
    )
  with one_line(f'parts.source={source!r}', source):
    module = points[0].load()
  about = points[0].dist
  return module, source, f'{about.name} {about.version}'


def _find_installed(names: Mapping[str, str]) -> Brought | None:
  """Returns what the one package brings that has all of these parts."""
  sources = sorted({point.name for point in metadata.entry_points(group=GROUP)})
  found = [one for one in map(bring, sources) if one.has(names)]
  if len(found) > 1:
    several = ', '.join(one.source for one in found)
    raise ValueError(
      f"parts.source='': must be one of {several}, which all have {names}."
    )
  return found[0] if found else None


def _check_part(what: str, kind: str, name: Any, part: Any, held) -> None:
  """Refuses a part of a taken name, or that we cannot call."""
  field = parts_lib.FIELDS[kind]
  if name in _OURS[field] or (kind == 'GATES' and name in held['ACTIVATIONS']):
    raise ValueError(f'{what}: there is a {field}={name!r} already; rename it.')
  functions = {kind: part}
  if kind == 'TASKS':
    if not isinstance(part, tasks.Task):
      raise ValueError(f'{what}: must be a kaiju_jax.tasks.registry.Task.')
    functions = {x: y for x, y in vars(part).items() if x in _TAKES}
  for function, called in functions.items():
    try:
      inspect.signature(called).bind(*_TAKES[function])
    except TypeError as error:
      takes = ', '.join(_TAKES[function])
      raise ValueError(
        f'{what}: {function} must be a function of ({takes}): {error}.'
      ) from error


@contextlib.contextmanager
def one_line(what: str, path: str) -> Iterator[None]:
  """Raises ValueError for any error, with the latest line of a file in it."""
  try:
    yield
  except Exception as error:
    stack = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in stack if frame.filename == path]
    at = f', line {lines[-1]}' if lines else ''
    text = f'{type(error).__name__}: {error}'.splitlines()[0]
    raise ValueError(f'{what}{at}: {text}') from error


def check(experiment: experiment_lib.Experiment, data: tasks.TaskData) -> None:
  """Refuses parts whose results have another type or shape than the step reads.

  It traces the objective's loss, and so the model, for one microbatch.

  Args:
    experiment: a resolved one.
    data: what its task has loaded.

  Raises:
    ValueError: names the part, and what it returns instead of what.
  """
  source, names = experiment.parts.source, find_used(experiment)
  for field, check_part in (
    ('data.task', _check_row),
    ('model.feedforward', _check_function),
    ('objective.name', _check_objective),
  ):
    if field in names:
      with one_line(f'{source}: {field}={names[field]!r}', source):
        check_part(experiment, data.rows[0])


def _check_row(experiment: experiment_lib.Experiment, row: Any) -> None:
  import numpy as np

  wanted = (experiment.data.length,)
  shapes = {np.shape(array) for array in row[:-1]}
  if shapes != {wanted}:
    raise ValueError(f'its rows hold arrays of shapes {shapes}, not {wanted}.')


def _check_function(experiment: experiment_lib.Experiment, _: Any) -> None:
  import jax

  kind = 'GATES' if experiment.model.is_gated else 'ACTIVATIONS'
  function = parts_lib.find(kind, experiment.model.feedforward)
  wanted = jax.ShapeDtypeStruct((2, 3, 8), 'float32')
  found = jax.eval_shape(function, wanted)
  if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
    raise ValueError(f'returns {found} for {wanted}, must keep both.')


def _check_objective(experiment: experiment_lib.Experiment, row: Any) -> None:
  import jax

  from kaiju_jax.data import packing
  from kaiju_jax.model import transformer
  from kaiju_jax.objectives import objective as objective_lib
  from kaiju_jax.training import state as state_lib

  objective = state_lib.objective_of(experiment)
  batch = packing.stack([row] * experiment.data.batch)
  objective.check(batch)
  if experiment.model.quantization.wire_weights == 'ternary':
    return  # The model reads a replica, which no shape stands for.

  def sums(params, batch):
    params = {**objective.parameters(), **params}
    model, z = state_lib.model_of(experiment), objective_lib.ZReg(0.0, 0.0)
    found = objective.loss(model, {'params': params}, batch, z)
    return found.loss, found.weight, found.metrics

  params = transformer.parameter_shapes(experiment.model)
  found = jax.tree.leaves(jax.eval_shape(sums, params, batch))
  shapes = {one.shape for one in found}
  if shapes != {()}:
    raise ValueError(f'its loss returns shapes {shapes}, not sums of shape ().')
