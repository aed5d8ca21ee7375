"""Masks drawn as literals, and trees and beams held to a walk up parents."""

import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels.visibility_attention import api

DRAWINGS = {
  'causal': (
    visibility_lib.causal(4),
    None,
    """
    x...
    xx..
    xxx.
    xxxx
    """,
  ),
  'causal, window 2': (
    visibility_lib.causal(4),
    2,
    """
    x...
    xx..
    .xx.
    ..xx
    """,
  ),
  'documents': (
    visibility_lib.documents([2, 3], 7),
    None,
    """
    x......
    xx.....
    ..x....
    ..xx...
    ..xxx..
    .......
    .......
    """,
  ),
  'documents, window 2': (
    visibility_lib.documents([1, 3], 4),
    2,
    """
    x...
    .x..
    .xx.
    ..xx
    """,
  ),
  'bidirectional': (
    visibility_lib.bidirectional(6, [(4, 6), (1, 3)]),
    None,
    """
    x.....
    xxx...
    xxx...
    xxxx..
    xxxxxx
    xxxxxx
    """,
  ),
  'bidirectional, window 1: behind it narrows, ahead it does not': (
    visibility_lib.bidirectional(4, [(1, 4)]),
    1,
    """
    x...
    .xxx
    ..xx
    ...x
    """,
  ),
  'tree': (
    visibility_lib.tree([-1, 0, 1, 2, 1, 0, -1, 6]),
    None,
    """
    x.......
    xx......
    xxx.....
    xxxx....
    xx..x...
    x....x..
    ......x.
    ......xx
    """,
  ),
  'tree, window 2: the parent, not the neighbour': (
    visibility_lib.tree([-1, 0, 1, 1, 0]),
    2,
    """
    x....
    xx...
    .xx..
    .x.x.
    x...x
    """,
  ),
  'beams: slot 4 is dead, slot 6 never filled': (
    visibility_lib.beams([-1, 0, 0, 1, 2, 2, -1], [5, 3]),
    None,
    """
    x.x..x.
    xx.x...
    """,
  ),
  'beams, window 2': (
    visibility_lib.beams([-1, 0, 0, 1, 2, 2, -1], [5, 3]),
    2,
    """
    ..x..x.
    .x.x...
    """,
  ),
  'beams in reused slots, a child before its parent': (
    visibility_lib.beams([2, 3, -1, 0, 3], [4, 1]),
    None,
    """
    x.xxx
    xxxx.
    """,
  ),
  'side by side': (
    visibility_lib.side_by_side(
      [
        visibility_lib.tree([-1, 0, 0]),
        visibility_lib.bidirectional(3, [(0, 2)]),
      ],
      7,
    ),
    None,
    """
    x......
    xx.....
    x.x....
    ...xx..
    ...xx..
    ...xxx.
    .......
    """,
  ),
}


@pytest.mark.parametrize('name', DRAWINGS)
def test_drawing(name):
  visibility, window, drawing = DRAWINGS[name]
  drawn = visibility_lib.draw(visibility, window)
  assert drawn == textwrap.dedent(drawing).strip()
  queries = visibility.coordinate_BL.shape[1]
  visibility_lib.check(visibility, queries)


@pytest.mark.parametrize('name', DRAWINGS)
def test_gradients_reach_what_is_seen_and_nothing_else(name):
  visibility, window, _ = DRAWINGS[name]
  dense_LM = visibility_lib.as_dense(visibility, window)[0]
  random = np.random.default_rng(0)
  L, M = dense_LM.shape
  q_BLHK = random.normal(size=(1, L, 1, 4)).astype(np.float32)
  k_BMK, v_BMK = random.normal(size=(2, 1, M, 4)).astype(np.float32)

  def of_each_query(k_BMK, v_BMK):
    out_BLHK, lse_BLH = api.attention(
      q_BLHK, k_BMK, v_BMK, *visibility, window=window, scale=0.5
    )
    return out_BLHK.sum(axis=(0, 2, 3)), lse_BLH.sum(axis=(0, 2))

  (_, out_by_v), (lse_by_k, lse_by_v) = jax.jit(
    jax.jacrev(of_each_query, argnums=(0, 1))
  )(k_BMK, v_BMK)
  np.testing.assert_array_equal((out_by_v != 0).any(axis=(1, 3)), dense_LM)
  np.testing.assert_array_equal((lse_by_k != 0).any(axis=(1, 3)), dense_LM)
  assert not lse_by_v.any()


def _random_tree(random, length):
  """Parents in preorder: each node extends the path or an ancestor of it."""
  parents = [-1]
  path = [0]
  for node in range(1, length):
    path = path[: random.integers(0, len(path) + 1)]
    parents.append(path[-1] if path else -1)
    path.append(node)
  return parents


def _walk(parents, node):
  """The path that ends at `node`, newest first, by following parents."""
  path = []
  while node != -1:
    path.append(node)
    node = parents[node]
  return path


def test_sinks_are_the_first_tokens_of_a_document():
  two = visibility_lib.documents([5, 3], 9)
  assert visibility_lib.draw(two, window=2, sinks=1).split() == [
    'x........',
    'xx.......',
    'xxx......',
    'x.xx.....',
    'x..xx....',
    '.....x...',
    '.....xx..',
    '.....xxx.',
    '.........',
  ]


@pytest.mark.parametrize(
  'window, sinks', [(None, 0), (1, 0), (3, 0), (2, 1), (1, 3)]
)
def test_random_trees_see_their_paths(window, sinks):
  random = np.random.default_rng(1)
  branched = 0
  for _ in range(100):
    parents = _random_tree(random, random.integers(1, 24))
    expected_LM = np.zeros((len(parents), len(parents)), bool)
    for node in range(len(parents)):
      path = _walk(parents, node)
      expected_LM[node, path[:window] + path[::-1][:sinks]] = True
    dense_BLM = visibility_lib.as_dense(
      visibility_lib.tree(parents), window, sinks
    )
    np.testing.assert_array_equal(dense_BLM[0], expected_LM)
    branched += len(set(parents)) < len(parents)
  assert branched > 50


@pytest.mark.parametrize('window', [None, 2])
def test_beam_search_sees_its_paths_while_slots_are_reused(window):
  random = np.random.default_rng(2)
  slots, width = 24, 4
  parents = np.full(slots, -1)
  leaves = [0]
  reused = 0
  written = {0}
  for _ in range(40):
    alive = {slot for leaf in leaves for slot in _walk(parents, leaf)}
    free = [slot for slot in random.permutation(slots) if slot not in alive]
    chosen = random.choice(leaves, size=min(width, len(free)))
    if len(alive) > slots - width:
      break
    leaves = free[: len(chosen)]
    reused += len(written.intersection(leaves))
    written.update(leaves)
    parents[leaves] = chosen
    visibility = visibility_lib.beams(parents, leaves)
    visibility_lib.check(visibility, len(leaves))
    expected_LM = np.zeros((len(leaves), slots), bool)
    for beam, leaf in enumerate(leaves):
      expected_LM[beam, _walk(parents, leaf)[:window]] = True
    dense_LM = visibility_lib.as_dense(visibility, window)[0]
    np.testing.assert_array_equal(dense_LM, expected_LM)
    dead_M = ~visibility_lib.as_dense(visibility)[0].any(axis=0)
    np.testing.assert_array_equal(
      dead_M, visibility.start_BM[0] == visibility.limit_BM[0]
    )
  assert reused > 5


def test_concatenate_stacks_rows():
  batch = visibility_lib.concatenate(
    [visibility_lib.causal(3), visibility_lib.documents([1, 1], 3)]
  )
  assert all(field.shape == (2, 3) for field in batch)
  assert visibility_lib.draw(batch, row=0) == 'x..\nxx.\nxxx'
  assert visibility_lib.draw(batch, row=1) == 'x..\n.x.\n...'


def test_side_by_side_moves_coordinates_with_their_ranges():
  turned = visibility_lib.Visibility(
    *(field[:, ::-1] for field in visibility_lib.causal(3))
  )
  row = visibility_lib.side_by_side([visibility_lib.causal(2), turned], 5)
  assert visibility_lib.draw(row) == 'x....\nxx...\n..xxx\n...xx\n....x'


def test_as_dense_takes_jax_arrays():
  name = 'tree, window 2: the parent, not the neighbour'
  visibility, window, _ = DRAWINGS[name]
  on_device = jax.tree.map(jax.numpy.asarray, visibility)
  np.testing.assert_array_equal(
    jax.jit(visibility_lib.as_dense, static_argnums=1)(on_device, window),
    visibility_lib.as_dense(visibility, window),
  )


V = visibility_lib


@pytest.mark.parametrize(
  'build, arguments, message',
  [
    (V.documents, ([2, 0], 4), r'lengths\[1\]=0'),
    (V.documents, ([2, 3], 4), r'parts\[1\].*5.*holds 4'),
    (V.bidirectional, (4, [(2, 5)]), r'\(2, 5\).*<= 4'),
    (V.bidirectional, (4, [(2, 2)]), r'\(2, 2\)'),
    (V.bidirectional, (6, [(0, 3), (2, 4)]), r'overlap'),
    # Breadth-first: node 3 returns to a branch that is already complete.
    (V.tree, ([-1, 0, 0, 1],), r'parents\[3\]=1.*preorder'),
    (V.tree, ([-1, 2, 0],), r'parents\[1\]=2.*preorder'),
    (V.tree, ([0],), r'parents\[0\]=0'),
    (V.beams, ([1, 0], [0]), 'circle'),
    (V.beams, ([-1, 7], [1]), r'slot 7.*0…1'),
    (V.beams, ([-1, 0], [2]), r'slot 2.*0…1'),
    (V.concatenate, ([],), 'empty'),
    (
      V.concatenate,
      ([V.causal(3), V.causal(4)],),
      r'visibilities\[1\]\.start_BM.*4.*3',
    ),
    (
      V.side_by_side,
      ([V.beams([-1, 0, 0], [1, 2])], 4),
      r'parts\[0\].*2 queries.*\(1, 3\)',
    ),
  ],
)
def test_constructors_refuse(build, arguments, message):
  with pytest.raises(ValueError, match=message):
    build(*arguments)


def _with(place):
  """Returns what sets the field's second number."""

  def change(array):
    array[0, 1] = place
    return array

  return change


@pytest.mark.parametrize(
  'field, change, message',
  [
    ('start_BM', _with(-1), r'start_BM\[0, 1\]=-1: expected 0…4'),
    ('limit_BM', _with(5), r'limit_BM\[0, 1\]=5: expected 1…4'),
    ('limit_BM', _with(0), r'limit_BM\[0, 1\]=0: expected 1…4'),
    ('coordinate_BL', _with(4), r'coordinate_BL\[0, 1\]=4: expected 0…3'),
    ('position_BL', _with(-2), r'position_BL\[0, 1\]=-2'),
    ('position_BM', _with(-2), r'position_BM\[0, 1\]=-2'),
    ('limit_BM', lambda x: x[:, :3], r'limit_BM has shape \(1, 3\)'),
    ('position_BL', np.int64, 'position_BL is int64: expected int32'),
  ],
)
def test_check_refuses_other_places_shapes_and_dtypes(field, change, message):
  causal = V.causal(4)
  broken = causal._replace(**{field: change(getattr(causal, field))})
  with pytest.raises(ValueError, match=message):
    V.check(broken, 4)


def test_importing_it_imports_no_jax():
  code = (
    'import sys, kaiju_jax.visibility;'
    'sys.exit(any(name.startswith("jax") for name in sys.modules))'
  )
  assert subprocess.run([sys.executable, '-c', code]).returncode == 0
