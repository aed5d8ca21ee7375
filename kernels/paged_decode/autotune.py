"""Candidates of tiles; each decodes the benchmark's shapes with both caches.

`benchmarks.device --slices=autotune` searches them and writes `tuned.json`
beside this file, where `blocks.py` reads the winners.
"""

from collections.abc import Mapping
import functools
import itertools

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.paged_decode import bench
from kaiju_jax.kernels.paged_decode import blocks


def candidates(implementation: str, shape: blocks.Shape) -> list[blocks.Sizes]:
  """Returns the tiles to try, around those of `blocks.rule`."""
  rule = blocks.rule(implementation, shape)
  if implementation == 'pallas_tpu':
    pages = {1, 2, 4, 8, 16, rule.J // shape.S}
    return [
      blocks.Sizes(rule.R, n * shape.S, X)
      for n, X in itertools.product(sorted(pages), (1, 2))
      if n <= shape.N
    ]
  X = sorted({max(1, rule.X // 2), rule.X, 2 * rule.X, 4 * rule.X})
  return [
    blocks.Sizes(rule.R, *each)
    for each in itertools.product((32, 64, 128), X, (4, 8), (3, 5, 7))
  ]


def jobs(
  shapes: Mapping[str, bench.BenchShape] = bench.SHAPES,
) -> dict[str, tuned.Job]:
  """Returns the search of every shape and cache, by the winner's key."""
  implementation = {'gpu': 'pallas_gpu', 'tpu': 'pallas_tpu'}.get(
    dispatch.platform()
  )
  if implementation is None:
    return {}
  found = {}
  for shape, cache in itertools.product(shapes.values(), bench.CACHES):
    tiled = bench.block_shape(shape, cache)
    if blocks.misfit(implementation, tiled):
      continue
    rule = blocks.rule(implementation, tiled)
    tried = dict.fromkeys([rule, *candidates(implementation, tiled)])
    found[blocks.key(implementation, tiled)] = tuned.Job(
      [each._asdict() for each in tried],
      functools.partial(_prepare, shape, cache, implementation),
    )
  return found


def _prepare(shape, cache, implementation):
  arguments = bench.arguments(shape, bench.layout(shape), cache)

  def run(candidate: tuned.Blocks):
    sizes = blocks.Sizes(**candidate)
    return functools.partial(
      bench.run(shape, implementation, sizes), *arguments
    )

  return run
