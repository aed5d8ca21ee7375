"""Each notation of groups against groups written out by hand."""

import numpy as np
import pytest

from kaiju_jax.aot.hlo import groups
from kaiju_jax.aot.hlo import text


def _instruction(attributes):
  array = text.Array('f32', ())
  return text.Instruction('x', array, 'all-reduce', (), '', attributes)


@pytest.mark.parametrize(
  ('notation', 'expected'),
  [
    ('{{0,4},{1,5},{2,6},{3,7}}', [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ('{}', [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ('[2,4]<=[8]', [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ('[4,2]<=[2,4]T(1,0)', [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ('[1,8]<=[8]', [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ("mesh['fsdp'=2,'tensor'=4] {'tensor'}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ("mesh['fsdp'=2,'tensor'=4] {'fsdp'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
    (
      "mesh['fsdp'=2,'tensor'=4] {'fsdp','tensor'}",
      [[0, 1, 2, 3, 4, 5, 6, 7]],
    ),
    # The last axis of a group runs fastest, whatever the order of the mesh.
    (
      "mesh['fsdp'=2,'tensor'=4] {'tensor','fsdp'}",
      [[0, 4, 1, 5, 2, 6, 3, 7]],
    ),
    ("mesh['a'=8] {'a':(1)2}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ("mesh['a'=8] {'a':(2)4}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    (
      "mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}",
      [[0, 2], [1, 3]],
    ),
    (
      "mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}",
      [[0, 2], [1, 3]],
    ),
  ],
)
def test_groups(notation, expected):
  found = groups.find_groups(
    _instruction(f'channel_id=1, replica_groups={notation}, dimensions={{0}}'),
    devices=8,
  )
  np.testing.assert_array_equal(found, expected)


def test_an_unknown_notation_is_refused():
  with pytest.raises(ValueError, match=r'replica_groups=@ring.*expected'):
    groups.find_groups(_instruction('replica_groups=@ring<8>'), 8)


@pytest.mark.parametrize(
  ('rows', 'expected'),
  [
    ([[0, 1, 2, 3], [4, 5, 6, 7]], ('tensor',)),
    ([[0, 4], [1, 5]], ('fsdp',)),
    ([[0, 1, 2, 3, 4, 5, 6, 7]], ('fsdp', 'tensor')),
    ([[0, 1], [2, 3]], ('tensor (2 of 4)',)),
    ([[0], [1]], ()),
  ],
)
def test_axes_that_groups_span(rows, expected):
  assert groups.axes(rows, {'fsdp': 2, 'tensor': 4}) == expected


@pytest.mark.parametrize(
  'rows', [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 2, 4, 6], [1, 3, 5, 7]]]
)
def test_half_of_an_axis_says_so(rows):
  assert groups.axes(rows, {'fsdp': 8, 'tensor': 1}) == ('fsdp (4 of 8)',)


def test_a_permutation_links_its_rings():
  ring = np.array([[0, 1], [1, 2], [2, 0], [3, 4], [4, 5], [5, 3], [6, 6]])
  assert groups.link(ring) == ((0, 1, 2), (3, 4, 5), (6,))
