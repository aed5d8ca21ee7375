"""Packed rows, drawn and against oracles that walk parents."""

import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.data import packing

BOS = 0


def _random_tree(rng, size):
  """Parents of a random tree in preorder."""
  parents = [-1]
  for node in range(1, size):
    parent = node - 1
    while parent > 0 and rng.random() < 0.3:
      parent = parents[parent]
    parents.append(parent)
  return np.array(parents)


def _path(parents, node):
  while node != -1:
    yield node
    node = parents[node]


def _dense(row, window=None):
  batch = packing.stack([row])
  visibility = batch.visibility()
  visibility_lib.check(visibility, len(row.tokens))
  return visibility_lib.as_dense(visibility, window)[0]


def _assert_row(row, **expected):
  for name, values in expected.items():
    field = getattr(row, name)
    np.testing.assert_array_equal(field, values, err_msg=name)
    assert field.dtype == (np.float32 if name == 'weight' else np.int32), name


def test_two_documents_and_padding():
  row = packing.row(
    [packing.Piece([BOS, 8, 9]), packing.Piece([BOS, 7], source=1)], 7
  )
  _assert_row(
    row,
    tokens=[0, 8, 9, 0, 7, 0, 0],
    start=[0, 1, 2, 3, 4, 5, 6],
    limit=[3, 3, 3, 5, 5, 5, 6],
    coordinate=[0, 1, 2, 3, 4, 5, 6],
    position=[0, 1, 2, 0, 1, 0, 0],
    predecessor=[0, 0, 1, 3, 3, 5, 6],
    weight=[0, 1, 1, 0, 1, 0, 0],
    source=[0, 0, 0, 1, 1, -1, -1],
  )
  drawing = visibility_lib.draw(packing.stack([row]).visibility())
  assert drawing.split() == [
    'x......',
    'xx.....',
    'xxx....',
    '...x...',
    '...xx..',
    '.......',
    '.......',
  ]


def test_a_tree_with_a_fork_behind_a_document():
  tree = packing.Piece([BOS, 5, 6, 7, 8], [-1, 0, 1, 0, 3], source=4)
  row = packing.row([packing.Piece([BOS, 9]), tree], 8)
  _assert_row(
    row,
    tokens=[0, 9, 0, 5, 6, 7, 8, 0],
    start=[0, 1, 2, 3, 4, 5, 6, 7],
    limit=[2, 2, 7, 5, 5, 7, 7, 7],
    coordinate=[0, 1, 2, 3, 4, 5, 6, 7],
    position=[0, 1, 0, 1, 2, 1, 2, 0],
    predecessor=[0, 0, 2, 2, 3, 2, 5, 7],
    weight=[0, 1, 0, 1, 1, 1, 1, 0],
    source=[0, 0, 4, 4, 4, 4, 4, -1],
  )
  drawing = visibility_lib.draw(packing.stack([row]).visibility())
  assert drawing.split() == [
    'x.......',
    'xx......',
    '..x.....',
    '..xx....',
    '..xxx...',
    '..x..x..',
    '..x..xx.',
    '........',
  ]


def test_weights_are_kept_but_for_the_first_token():
  row = packing.row([packing.Piece([BOS, 1, 2], weights=[9, 0, 0.5])], 4)
  _assert_row(row, weight=[0, 0, 0.5, 0])


def test_a_row_without_pieces_is_padding():
  row = packing.row([], 3)
  assert not row.weight.any()
  assert (row.source == -1).all()
  assert not _dense(row).any()


@pytest.mark.parametrize('window', [None, 3])
def test_random_rows_against_walking_parents(window):
  rng = np.random.default_rng(0)
  for _ in range(60):
    pieces, truth = [], []
    for number in range(rng.integers(1, 5)):
      size = int(rng.integers(1, 12))
      tokens = rng.integers(1, 99, size)
      if rng.random() < 0.5:
        parents = _random_tree(rng, size)
        pieces.append(packing.Piece(tokens, parents, source=number))
      else:
        parents = np.arange(size) - 1
        pieces.append(packing.Piece(tokens, source=number))
      offset = len(truth)
      for node in range(size):
        path = [offset + place for place in _path(parents, node)]
        truth.append((path, number, tokens[node]))
    length = len(truth) + int(rng.integers(0, 3))
    row = packing.row(pieces, length)
    dense = _dense(row, window)
    for place in range(length):
      path, number, token = truth[place] if place < len(truth) else ([], -1, 0)
      assert set(np.flatnonzero(dense[place])) == set(path[:window])
      assert row.source[place] == number
      assert row.tokens[place] == token
      assert row.weight[place] == (len(path) > 1)
      assert row.predecessor[place] == (path + [place])[len(path) > 1]
      assert row.position[place] == max(len(path) - 1, 0)


def test_offsets_follow_each_other_and_trees_skip_to_the_next_row():
  whole = [False, True, False, True, False]
  np.testing.assert_array_equal(
    packing.offsets([3, 4, 5, 3, 20], [False] * 5, 8), [0, 3, 7, 12, 15, 35]
  )
  np.testing.assert_array_equal(
    packing.offsets([3, 4, 5, 5, 20], whole, 8), [0, 3, 7, 16, 21, 41]
  )
  np.testing.assert_array_equal(
    packing.offsets([8, 8], [True, True], 8), [0, 8, 16]
  )


@pytest.mark.parametrize(
  'field, value, message',
  [
    ('limit', 9, r'limit_BM\[1, 2\]=9: expected 2…6'),
    ('start', -1, r'start_BM\[1, 2\]=-1: expected 0…6'),
    ('coordinate', 6, r'coordinate_BL\[1, 2\]=6: expected 0…5'),
    ('position', -3, r'position_BL\[1, 2\]=-3: expected 0…'),
  ],
)
def test_a_row_that_leaves_itself_is_refused(field, value, message):
  whole = packing.row([packing.Piece([1, 2, 3, 4])], 6)
  broken = whole._replace(**{field: getattr(whole, field).copy()})
  getattr(broken, field)[2] = value
  packing.stack([whole, whole])
  with pytest.raises(ValueError, match=message):
    packing.stack([whole, broken])


def test_stack_and_microbatches():
  rows = [packing.row([packing.Piece([BOS, n])], 4) for n in (1, 2)]
  batch = packing.stack(rows)
  assert batch.tokens_BL.shape == (2, 4)
  visibility = batch.visibility()
  np.testing.assert_array_equal(visibility.start_BM, batch.start_BL)
  np.testing.assert_array_equal(visibility.limit_BM, batch.limit_BL)
  np.testing.assert_array_equal(visibility.coordinate_BL, batch.coordinate_BL)
  np.testing.assert_array_equal(visibility.position_BL, batch.position_BL)
  np.testing.assert_array_equal(visibility.position_BM, batch.position_BL)


@pytest.mark.parametrize(
  ('piece', 'message'),
  [
    (packing.Piece([]), 'document 0 is empty'),
    (packing.Piece([1] * 5), 'the row holds 4'),
    (packing.Piece([1, 2, 3], [-1, 0, -1]), 'several roots'),
    (packing.Piece([1, 2, 3, 4], [-1, 0, 0, 1]), 'preorder'),
  ],
)
def test_bad_pieces(piece, message):
  with pytest.raises(ValueError, match=message):
    packing.row([piece], 4)


def test_extras_lie_beside_their_tokens():
  pieces = [
    packing.Piece([BOS, 1], extras={'x_BLT': np.array([[1, 2], [3, 4]])}),
    packing.Piece([BOS], source=1),
    packing.Piece([BOS], extras={'x_BLT': np.array([[5, 6]])}, source=2),
  ]
  (array,) = packing.row(pieces, 6).extras.values()
  assert array.tolist() == [[1, 2], [3, 4], [0, 0], [5, 6], [0, 0], [0, 0]]
  assert packing.row(pieces[1:2], 6).extras is None
  broken = pieces[0]._replace(extras={'x_BLT': np.zeros((3, 2))})
  with pytest.raises(ValueError, match=r"extras\['x_BLT'\] has 3 .* 2 tokens"):
    packing.row([broken], 6)
