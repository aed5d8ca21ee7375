"""Finds a collective's groups of devices, and the mesh axes that they span.

HLO has three notations; without groups all devices take part together:

    {{0,1},{2,3}}                        written out
    [2,4]<=[4,2]T(1,0)                   iota: reshape, transpose, then two
                                         groups of four
    mesh['fsdp'=2,'tensor'=4] {'fsdp'}   axes of a mesh, or parts of them:
                                         'fsdp':(m)s is the part of width s
                                         below the m outer ones

The numbers are partitions. Partition p is the p-th device of the mesh, in which
the last axis runs fastest. (With one replica, `use_global_device_ids` changes
nothing.)
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import re

import numpy as np

from kaiju_jax.aot.hlo import text as text_lib

_IOTA = re.compile(r'\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?')
_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def find_groups(instruction: text_lib.Instruction, devices: int) -> np.ndarray:
  """Returns the groups of a collective, one per row.

  Args:
    instruction: the collective.
    devices: number of partitions of the program.

  Raises:
    ValueError: the notation is none of the three.
  """
  text = instruction.attribute('replica_groups')
  if text is None or text in ('{}', '{{}}'):
    return np.arange(devices)[None]
  if text.startswith('{'):
    rows = re.findall(r'\{([\d,]+)\}', text)
    return np.array([_ints(row) for row in rows])
  if text.startswith('mesh['):
    return _of_mesh(instruction.attributes)
  iota = _IOTA.fullmatch(text)
  if iota is None:
    raise ValueError(
      f'{instruction.name}: replica_groups={text}: expected {{{{0,1}},…}},'
      ' an iota [2,4]<=[8] or a mesh.'
    )
  groups, width = _ints(iota.group(1))
  return _iota(iota.group(2), iota.group(3)).reshape(groups, width)


def pairs(instruction: text_lib.Instruction) -> np.ndarray:
  """Returns the (source, target) pairs of a permutation, one per row."""
  text = instruction.attribute('source_target_pairs')
  found = [_ints(pair) for pair in re.findall(r'\{(\d+,\d+)\}', text)]
  return np.array(found).reshape(-1, 2)


def link(pairs: np.ndarray) -> tuple[tuple[int, ...], ...]:
  """Returns the groups of devices that a permutation connects."""
  group = {device: {device} for device in pairs.ravel().tolist()}
  for source, target in pairs.tolist():
    if group[source] is not group[target]:
      group[source] |= group[target]
      for device in group[target]:
        group[device] = group[source]
  distinct = {id(devices): devices for devices in group.values()}
  return tuple(tuple(sorted(devices)) for devices in distinct.values())


def axes(
  groups: Iterable[Sequence[int]], mesh: Mapping[str, int]
) -> tuple[str, ...]:
  """Returns the axes that the groups span, in the mesh's order.

  A part of an axis is noted: 'fsdp (4 of 8)'.
  """
  widths = tuple(mesh.values())
  places = [np.unravel_index(np.asarray(row), widths) for row in groups]
  names = []
  for number, axis in enumerate(mesh):
    spanned = max(len(np.unique(place[number])) for place in places)
    if spanned == mesh[axis] > 1:
      names.append(axis)
    elif spanned > 1:
      names.append(f'{axis} ({spanned} of {mesh[axis]})')
  return tuple(names)


def _of_mesh(attributes: str) -> np.ndarray:
  found = re.search(
    r'replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^ ]*)\))? \{([^}]*)\}',
    attributes,
  )
  if found is None:
    raise ValueError(f'a mesh without axes: {attributes[:200]}')
  widths = {
    name: int(width)
    for name, width in re.findall(r"'([^']+)'=(\d+)", found.group(1))
  }
  order = np.arange(np.prod([*widths.values()], dtype=int))
  if found.group(2):
    order = _order(found.group(2))
  # Each axis becomes three: outside the part, the part, inside the part.
  shape, place = [], {}
  named = _AXIS.findall(found.group(3))
  parts = {
    name: (int(before or 1), int(part or widths[name]))
    for name, before, part in named
  }
  if len(parts) != len(named):
    raise ValueError(f'an axis in two parts is not read: {found.group()}')
  for name, width in widths.items():
    before, part = parts.get(name, (1, 1))
    place[name] = len(shape) + 1
    shape += [before, part, width // (before * part)]
  ids = order.reshape(shape)
  last = [place[name] for name in parts]
  first = [axis for axis in range(ids.ndim) if axis not in last]
  width = int(np.prod([shape[axis] for axis in last], dtype=int))
  return ids.transpose(first + last).reshape(-1, width)


def _order(text: str) -> np.ndarray:
  iota = _IOTA.fullmatch(text)
  if iota is None:
    return np.array(_ints(text))
  return _iota(iota.group(2) or iota.group(1), iota.group(3)).ravel()


def _iota(sizes: str, permutation: str | None) -> np.ndarray:
  shape = _ints(sizes)
  ids = np.arange(np.prod(shape, dtype=int)).reshape(shape)
  return ids.transpose(_ints(permutation)) if permutation else ids


def _ints(text: str) -> Sequence[int]:
  return [int(part) for part in text.split(',')]
