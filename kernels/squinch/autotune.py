"""Candidates of tiles, for the 13b gradient of hidden units and for decoding.

`benchmarks.device --slices=autotune` searches them and writes `tuned.json`
beside this file, where `blocks.py` reads the winners.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
import itertools

import jax

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.squinch import bench
from kaiju_jax.kernels.squinch import blocks

# The cases to search; the winner of `encode` does not depend on the parts.
CASES = (
  ('encode', '13b hidden', 2),
  ('decode', '13b hidden', 4),
  ('decode', '34b hidden', 4),
  ('decode', '110b hidden', 4),
)
_IMPLEMENTATIONS = {'gpu': 'pallas_gpu', 'tpu': 'pallas_tpu'}


def candidates(
  platform: str, kind: str, parts: int
) -> list[blocks.Threads | blocks.Tpu]:
  """Returns the sizes to try for a kernel of `parts` parts."""
  together = [n for n in (1, 2, 4, 8, 16) if parts % n == 0]
  if kind == 'encode':
    together = [1]
  if platform == 'tpu':
    return [
      blocks.Tpu(groups, n)
      for groups, n in itertools.product((32, 64, 128, 256, 512), together)
    ]
  return [
    blocks.Threads(columns, n, warps)
    for columns, n, warps in itertools.product((4, 8, 16), together, (2, 4, 8))
  ]


def jobs(
  shapes: Mapping[str, bench.Shape] = bench.SHAPES,
) -> dict[str, tuned.Job]:
  """Returns the search of every case, by the winner's key.

  Args:
    shapes: shapes, by the names in CASES.
  """
  platform = dispatch.platform()
  if platform not in _IMPLEMENTATIONS:
    return {}
  found = {}
  for kind, label, itemsize in CASES:
    shape = shapes[label]
    sizes = candidates(platform, kind, shape.parts)
    name = blocks.key(kind, shape.parts, itemsize)
    found[name] = tuned.Job(
      [each._asdict() for each in sizes],
      functools.partial(_prepare, kind, shape, type(sizes[0])),
    )
  return found


def _prepare(kind, shape, sizes) -> Callable[[tuned.Blocks], Callable]:
  operands = bench.operands(shape)
  kernel = bench.KERNELS[{'encode': 'encode', 'decode': 'decode_sum'}[kind]]
  implementation = _IMPLEMENTATIONS[dispatch.platform()]

  step = functools.partial(kernel, shape, implementation=implementation)
  call = functools.partial(jax.jit(step), operands)
  return lambda candidate: tuned.bind(call, sizes(**candidate))
