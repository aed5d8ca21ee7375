"""Whether a compiled step sends what it should, and nothing else.

    over fsdp           weights as s8 codes or u8 trits, their gradients as
                        u8, and nothing float but vectors: scales, gains,
                        their gradients
    over tensor         the rows' activations, but no array shaped as a weight
    over the whole mesh scalars, and sums of vectors such as norms

A weight that the config keeps in float (an embedding with
`quantization.embedding='none'`) or sends so (`wire_weights`,
`wire_gradients`) is not looked at.
"""

from collections.abc import Iterable
from collections.abc import Iterator

from kaiju_jax import config as config_lib
from kaiju_jax.hlo import collectives as collectives_lib
from kaiju_jax.model import footprint
from kaiju_jax.sharding import config as sharding_config

_FLOATS = ('f64', 'f32', 'bf16', 'f16')


def problems(
  collectives: Iterable[collectives_lib.Collective],
  experiment: config_lib.Experiment,
  mesh: sharding_config.MeshConfig,
) -> tuple[str, ...]:
  """Returns a line for each collective that should not be there.

  Args:
    collectives: of the compiled step.
    experiment: model and rows.
    mesh: widths of the axes that it was compiled for.
  """
  config = experiment.model
  coded = list(_coded(config))
  if not coded:
    return ()
  least = min(x.size // x.copies for x in coded)
  shapes = {shape for x in coded for shape in _shapes(x, mesh)}
  exempt = {
    shape
    for x in footprint.parameters(config)
    if len(x.shape) > 1 and x not in coded
    for shape in _shapes(x, mesh)
  }
  rows = _rows(experiment, mesh)
  lines = []
  for x in collectives:
    shape = _bare(x.shape)
    is_float = x.dtype in _FLOATS
    if is_float and shape in shapes and not _is_rows(x, shape, rows):
      lines.append(f'a weight in {_said(x)}')
    elif is_float and 'fsdp' in _names(x) and x.size >= least:
      if shape not in exempt:
        lines.append(f'more than a vector in {_said(x)}')
    elif _is_everywhere(x, mesh) and x.size > config.d_model:
      lines.append(f'more than a vector, over the whole mesh: {_said(x)}')
  return tuple(dict.fromkeys(lines))


def gradient_bytes(collectives: Iterable[collectives_lib.Collective]) -> float:
  """Returns what one device sends of weights' gradients over fsdp in a step.

  Exchanges and sums of matrices (a TPU's compiler makes an all-reduce of a
  small reduce-scatter); vectors' sums are not in it.
  """
  return sum(
    x.total
    for x in collectives
    if 'fsdp' in _names(x)
    and x.kind in ('all-to-all', 'all-reduce', 'reduce-scatter')
    and len(_bare(x.shape)) > 1
  )


def _coded(config) -> Iterator[footprint.Parameter]:
  """Yields the matrices that should cross as codes, both ways."""
  quantization = config.quantization
  if quantization.wire_weights == 'float' or not (
    quantization.wire_gradients.startswith('squinch')
  ):
    return
  for x in footprint.parameters(config):
    key = 'embedding' if x.family == 'embedding' else 'matmul'
    if len(x.shape) > 1 and getattr(quantization, key) == 'int8':
      yield x


def _shapes(parameter, mesh) -> Iterator[tuple[int, ...]]:
  """Yields a weight's whole shape, and the one that a device uses."""
  yield _bare(parameter.shape)
  yield _bare(
    size // mesh.tensor if letter in 'FHV' else size
    for letter, size in zip(parameter.letters, parameter.shape)
  )


def _rows(experiment, mesh) -> set[tuple[int, ...]]:
  """Returns the shapes of activations, L whole and split."""
  data = experiment.data
  batch, d_model = data.batch // mesh.fsdp, experiment.model.d_model
  return {
    _bare((batch, length, d_model))
    for length in (data.length, data.length // mesh.tensor)
  }


def _is_rows(x, shape, rows) -> bool:
  """Whether it may be activations of a weight's shape."""
  return shape in rows and 'fsdp' not in _names(x)


def _bare(shape: Iterable[int]) -> tuple[int, ...]:
  """Without dimensions of 1 and without their order, which compilers change."""
  return tuple(sorted(size for size in shape if size > 1))


def _names(collective) -> tuple[str, ...]:
  return tuple(axis.partition(' ')[0] for axis in collective.axes)


def _is_everywhere(collective, mesh) -> bool:
  return collective.group == mesh.devices and min(mesh.fsdp, mesh.tensor) > 1


def _said(x: collectives_lib.Collective) -> str:
  shape = ','.join(map(str, x.shape))
  return (
    f'{x.dtype}[{shape}]: {x.kind} over {"+".join(x.axes)}, {x.times} times'
    f' ({x.op_name.rpartition("/")[2] or "no name"})'
  )
