"""Estimates the seconds of a collective on a slice's links, at full bandwidth.

The result has n bytes per device (for a reduce-scatter, the operand), and a
group has g devices.

On GPUs, m devices of the group are in one node. A node fetches each byte
through the network once and shares it over NVLink; an all-to-all sends each
byte to its one reader. The bytes per device are

                                     NVLink             network
    all-gather, reduce-scatter       n (m − 1)/m        n (g − m)/(g m)
    all-reduce                       twice as many
    all-to-all                       n (m − 1)/g        n (g − m)/g
    collective-permute               n if m = g         n if m < g

On TPUs, the group is a box in a torus of links that carry W bytes/s each way.
A side is k chips long, and a chip has c of its links to itself: 2 on a ring
(both ways), 1 on a line. Where only every s-th chip is in the group, s groups
share the side and a chip has c/s. All sides run at once. The bytes of an
all-to-all travel k/4 hops on a ring of k. The seconds are

    all-gather, reduce-scatter       n (g − 1)/(g · W Σ c)
    all-reduce                       twice as long
    all-to-all                       n max(k/c)/(4 W)
    collective-permute               n/W

Both are lower bounds: they assume no latency and no contention, that NVLink and
the network run at once, and that the axes lie on the torus as
`sharding/mesh.py` places them.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import itertools
import math

from kaiju_jax.costs import accelerator as accelerator_lib
from kaiju_jax.sharding import config as sharding_config

# The least length at which a side is a ring, by the torus's dimensions. In a
# v5p, optical switches join cubes of 4; a v5e or v6e pod has rings only at 16.
_RING = {3: 4, 2: 16}


def seconds(
  kind: str,
  result_bytes: float,
  axes: Sequence[str],
  accelerator: accelerator_lib.Accelerator,
  mesh: sharding_config.MeshConfig,
) -> float:
  """Returns a collective's seconds.

  Args:
    kind: one of `aot.hlo.collectives.KINDS`.
    result_bytes: bytes of one device's result.
    axes: the axes that the group spans, each whole.
    mesh: widths of the axes.

  Raises:
    ValueError: the chip's bandwidth is not known.
  """
  group = math.prod(getattr(mesh, axis) for axis in axes)
  if group == 1:
    return 0.0
  payload = result_bytes * group if kind == 'reduce-scatter' else result_bytes
  if accelerator.torus:
    once = _torus(kind, payload, axes, accelerator, mesh)
  else:
    once = _nodes(kind, payload, axes, accelerator, mesh)
  return 2 * once if kind == 'all-reduce' else once


def neighbours(
  axes: Sequence[str],
  accelerator: accelerator_lib.Accelerator,
  mesh: sharding_config.MeshConfig,
) -> int:
  """Returns how many devices of a group are in one node.

  A node's devices are successive in the mesh, in which `tensor` runs fastest.
  """
  strides = {'fsdp': mesh.tensor, 'tensor': 1}
  ranges = [
    [strides[axis] * place for place in range(getattr(mesh, axis))]
    for axis in axes
  ]
  node = [
    sum(place) // accelerator.devices_per_host
    for place in itertools.product(*ranges)
  ]
  return node.count(0)


def sides(
  accelerator: accelerator_lib.Accelerator, mesh: sharding_config.MeshConfig
) -> Mapping[str, tuple[tuple[int, float], ...]]:
  """Returns each axis's sides of the torus, as (length, a chip's own links).

  `tensor` gets whole sides if their product is its width. Otherwise it gets the
  chips of one host, then those of the next. `fsdp` gets the rest.

  Raises:
    ValueError: the width of `tensor` fills no box.
  """
  torus = accelerator.torus
  links = [2.0 if side >= _RING[len(torus)] else 1.0 for side in torus]
  axes = {'tensor': [], 'fsdp': []}
  for side, part, c in zip(torus, _box(accelerator, mesh.tensor), links):
    if part == side:
      axes['tensor'].append((side, c))
    elif part == 1:
      axes['fsdp'].append((side, c))
    else:
      axes['tensor'].append((part, 1.0))
      axes['fsdp'].append((side // part, c / part))
  return {name: tuple(found) for name, found in axes.items()}


def _box(
  accelerator: accelerator_lib.Accelerator, width: int
) -> tuple[int, ...]:
  """Returns the sides of a tensor group's box in the torus."""
  torus = accelerator.torus
  for count in range(len(torus), -1, -1):
    for chosen in itertools.combinations(range(len(torus)), count):
      if math.prod(torus[i] for i in chosen) == width:
        return tuple(side if i in chosen else 1 for i, side in enumerate(torus))
  # First a host's 2 × 2 chips, then the hosts along x, y and z.
  box, left = [1] * len(torus), width
  for i, limit in (0, 2), (1, 2), *enumerate(torus):
    step = math.gcd(left, limit // box[i])
    box[i] *= step
    left //= step
  if left > 1:
    raise ValueError(
      f'{accelerator.name}: mesh.tensor={width} is no product of sides of'
      f' {accelerator.topology}, nor of parts of them.'
    )
  return tuple(box)


def _nodes(kind, payload, axes, accelerator, mesh) -> float:
  chip = accelerator.chip
  if not chip.node_bandwidth or not chip.network_bandwidth:
    raise ValueError(f'{accelerator.name}: {chip.name} has no bandwidth.')
  group = math.prod(getattr(mesh, axis) for axis in axes)
  m = neighbours(axes, accelerator, mesh)
  if kind in ('all-to-all', 'ragged-all-to-all'):
    near, far = payload * (m - 1) / group, payload * (group - m) / group
  elif kind == 'collective-permute':
    near, far = (payload, 0.0) if m == group else (0.0, payload)
  else:
    near = payload * (m - 1) / m
    far = payload * (group - m) / (group * m)
  return max(near / chip.node_bandwidth, far / chip.network_bandwidth)


def _torus(kind, payload, axes, accelerator, mesh) -> float:
  width = accelerator.chip.link_bandwidth
  placed = sides(accelerator, mesh)
  box = [side for axis in axes for side in placed[axis] if side[0] > 1]
  if kind in ('all-to-all', 'ragged-all-to-all'):
    return max(payload * k / (4 * links * width) for k, links in box)
  if kind == 'collective-permute':
    return payload / width
  group = math.prod(k for k, _ in box)
  total = width * sum(links for _, links in box)
  return payload * (group - 1) / group / total
