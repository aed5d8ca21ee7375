"""How long a collective takes on a slice's wires, at their full width.

n bytes a device of the result (of the operand, for a reduce-scatter), g devices
in a group.

GPUs, m of the group in one node. A node's members pull each byte through the
network once between them and share it over NVLink; an all-to-all sends each
byte to its one reader:

                                     NVLink             network
    all-gather, reduce-scatter       n (m − 1)/m        n (g − m)/(g m)
    all-reduce                       twice of each
    all-to-all                       n (m − 1)/g        n (g − m)/g

TPUs, the group a box of d sides in a torus of links that carry W bytes/s each
way. Rings run on all sides and both ways at once; what an all-to-all sends
travels k/4 hops on a ring of k:

    all-gather, reduce-scatter       n (g − 1)/(g · 2 W d)
    all-reduce                       twice of it
    all-to-all                       n k/(8 W), k the longest side

A side that is not a whole ring has half of the width. Both are lower bounds: no
latency, no contention, NVLink and network at once, each axis laid along whole
sides of the torus where its width allows (our guess of what the scheduler
gives).
"""

from collections.abc import Mapping
from collections.abc import Sequence
import itertools
import math

from kaiju_jax import accelerator as accelerator_lib
from kaiju_jax.sharding import config as sharding_config

# Sides of a torus at least this long are rings: v5p's are cubes of 4 joined by
# optical switches; a v5e or v6e pod is a ring at 16 only.
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
    kind: of `hlo.collectives.KINDS`.
    result_bytes: of one device's result.
    axes: that the group spans, whole.
    accelerator: whose wires.
    mesh: widths of the axes.

  Raises:
    ValueError: a slice without any bandwidth.
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
  """Returns how many of a group are in one node.

  Devices stand in the mesh as they do in the nodes, `tensor` running fastest.
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
) -> Mapping[str, tuple[tuple[int, bool], ...]]:
  """Returns the (length, whether it is a ring) of each axis's sides.

  `tensor` gets the fewest whole sides that make its width, else a part of the
  longest one; `fsdp` gets the rest.
  """
  torus = list(accelerator.torus)
  ring = _RING[len(torus)]
  for count in range(len(torus) + 1):
    for chosen in itertools.combinations(range(len(torus)), count):
      if math.prod(torus[i] for i in chosen) == mesh.tensor:
        rest = [i for i in range(len(torus)) if i not in chosen]
        return {
          axis: tuple((torus[i], torus[i] >= ring) for i in indices)
          for axis, indices in (('tensor', chosen), ('fsdp', rest))
        }
  longest = max(torus)
  if longest % mesh.tensor:
    raise ValueError(
      f'{accelerator.name}: mesh.tensor={mesh.tensor} is no product of sides of'
      f' {accelerator.topology}, nor a part of one.'
    )
  torus.remove(longest)
  rest = [(side, side >= ring) for side in torus]
  part = longest // mesh.tensor
  return {
    'tensor': ((mesh.tensor, False),),
    'fsdp': (*rest, (part, False)) if part > 1 else tuple(rest),
  }


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
    return max(
      payload * k / ((8 if is_ring else 4) * width) for k, is_ring in box
    )
  if kind == 'collective-permute':
    return payload / width
  group = math.prod(k for k, _ in box)
  total = sum(2 * width if is_ring else width for _, is_ring in box)
  return payload * (group - 1) / group / total
