"""Checks that a compiled step sends what its config says, and nothing else.

    over fsdp           weights as s8 codes or u8 trits, their gradients as u8;
                        the only floats are vectors: scales, gains and their
                        gradients
    over tensor         the rows' activations, but no array of a weight's shape;
                        and an owner's gradient of a weight that tensor does
                        not split
    over the whole mesh scalars, and sums of vectors such as norms

The audit compares gathers with the config's choices for weights (`matmul`,
`embedding`, `wire_weights`), and reductions and exchanges with its choice for
gradients (`wire_gradients`). A permutation may carry either, so the audit
checks it only where both cross as codes. It does not check what the config
sends in float.

A reduce-scatter's result is one part of its operand, so the operand's size
counts.
"""

from collections.abc import Iterable
import dataclasses
import math

from kaiju_jax.aot.hlo import collectives as collectives_lib
from kaiju_jax.costs import footprint
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import rules
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.wire import codec

_FLOATS = ('f64', 'f32', 'bf16', 'f16')
_GATHERS = ('all-gather', 'collective-broadcast')
_PARTS = ('reduce-scatter', 'collective-permute')


def problems(
  collectives: Iterable[collectives_lib.Collective],
  experiment: experiment_lib.Experiment,
  mesh: sharding_config.MeshConfig,
) -> tuple[str, ...]:
  """Returns a line for each collective that the config does not allow.

  Args:
    collectives: the compiled step's collectives.
    experiment: the experiment of the step.
    mesh: widths of the axes that the step was compiled for.
  """
  subjects = _subjects(experiment.model, mesh)
  rows = _rows(experiment, mesh)
  lines = []
  for x in collectives:
    subject = subjects[_word(x.kind)]
    if not subject.whole:
      continue
    size, is_float = _size(x), x.dtype in _FLOATS
    if is_float and _is_matrix(x, subject, rows):
      lines.append(f'{_word(x.kind)} in {_describe(x)}')
    elif is_float and 'fsdp' in _names(x) and size >= subject.least:
      if _bare(x.shape) not in subject.exempt:
        lines.append(f'more than a vector in {_describe(x)}')
    elif _is_everywhere(x, mesh) and size > experiment.model.d_model:
      lines.append(f'more than a vector, over the whole mesh: {_describe(x)}')
  return tuple(dict.fromkeys(lines))


@dataclasses.dataclass(frozen=True)
class _Subject:
  """The matrices that a kind of collective must not carry in float."""

  # Shapes of the matrices that cross as codes, with the whole D; empty where
  # the config sends floats.
  whole: frozenset[tuple[int, ...]]
  shards: frozenset[tuple[int, ...]]  # Shapes of the parts that owners store.
  # Those of `shards` that tensor does not split.
  copied: frozenset[tuple[int, ...]]
  # Shapes of the matrices that cross in float.
  exempt: frozenset[tuple[int, ...]]
  least: int  # Numbers in the smallest matrix, as a device uses it.


def _word(kind: str) -> str:
  if kind == 'collective-permute':
    return 'a weight or a gradient'
  return 'a weight' if kind in _GATHERS else 'a gradient'


def _subjects(config, mesh) -> dict[str, _Subject]:
  """Returns {`_word` of a collective: the matrices that must be codes}."""
  quantization = config.quantization
  matrices = [
    x
    for x in footprint.parameters(config)
    if len(x.shape) > 1 and 'D' in x.letters
  ]
  weights = [
    x
    for x in matrices
    if quantization.wire_weights != 'float' and _is_int8(x, quantization)
  ]
  # Squinch encodes the gradient of a float weight, too.
  is_squinch = codec.choose(quantization).kind == 'squinch'
  return {
    'a weight': _subject(weights, matrices, mesh),
    'a gradient': _subject(matrices if is_squinch else [], matrices, mesh),
    'a weight or a gradient': _subject(
      weights if is_squinch else [], matrices, mesh
    ),
  }


def _is_int8(parameter, quantization) -> bool:
  key = 'embedding' if parameter.family == 'embedding' else 'matmul'
  return getattr(quantization, key) == 'int8'


def _subject(coded, matrices, mesh) -> _Subject:
  rest = [x for x in matrices if x not in coded]
  used = [_local(x, 1, mesh.tensor) for x in coded]
  shards = {x: _bare(_local(x, mesh.fsdp, mesh.tensor)) for x in coded}
  return _Subject(
    whole=frozenset(map(_bare, [*used, *(x.shape for x in coded)])),
    shards=frozenset(shape for shape in shards.values() if len(shape) > 1),
    copied=frozenset(
      shape
      for x, shape in shards.items()
      if 'tensor' not in map(rules.STORED.get, x.letters)
    ),
    exempt=frozenset(
      map(
        _bare,
        [*(_local(x, 1, mesh.tensor) for x in rest), *(x.shape for x in rest)],
      )
    ),
    least=min(map(math.prod, used), default=0),
  )


def _local(parameter, fsdp: int, tensor: int) -> tuple[int, ...]:
  """Returns one device's part of a matrix's shape."""
  widths = {'fsdp': fsdp, 'tensor': tensor}
  return rules.part(parameter.letters, parameter.shape, widths)


def _is_matrix(x, subject, rows) -> bool:
  """Returns whether x has the shape of a matrix or of an owner's part."""
  shape = _bare(x.shape)
  if 'fsdp' in _names(x):
    is_part = x.kind in _PARTS and shape in subject.shards
    return is_part or shape in subject.whole
  is_copies_sum = x.kind == 'all-reduce' and shape in subject.copied
  return shape in subject.whole and shape not in rows and not is_copies_sum


def _size(x: collectives_lib.Collective) -> int:
  """Returns the size of one device's operand or result, the larger one."""
  return x.size * x.group if x.kind == 'reduce-scatter' else x.size


def _rows(experiment, mesh) -> set[tuple[int, ...]]:
  """Returns the shapes of activations, with L whole and split."""
  data = experiment.data
  batch, d_model = data.batch // mesh.fsdp, experiment.model.d_model
  return {
    _bare((batch, length, d_model))
    for length in (data.length, data.length // mesh.tensor)
  }


def _bare(shape: Iterable[int]) -> tuple[int, ...]:
  """Returns the sizes above 1, sorted: compilers reorder and pad dimensions."""
  return tuple(sorted(size for size in shape if size > 1))


def _names(collective) -> tuple[str, ...]:
  return tuple(axis.partition(' ')[0] for axis in collective.axes)


def _is_everywhere(collective, mesh) -> bool:
  return collective.group == mesh.devices and min(mesh.fsdp, mesh.tensor) > 1


def _describe(x: collectives_lib.Collective) -> str:
  shape = ','.join(map(str, x.shape))
  return (
    f'{x.dtype}[{shape}]: {x.kind} over {"+".join(x.axes)}, {x.times} times'
    f' ({x.op_name.rpartition("/")[2] or "no name"})'
  )
