"""The ledger against walks up the parents, on random histories."""

import re

import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding.beam import slots as beam_slots
from kaiju_jax.decoding.beam import tree as beam_tree
from tests.decoding import toys


class History:
  """The oracle: a plain tree of nodes, and which node each slot last got."""

  def __init__(self, rng, length, windows, slots, sinks):
    self.windows, self.sinks = windows, sinks
    self.parents = list(range(-1, length - 1))
    self.beams, self.resting = [length - 1], []
    self.content = {}
    held = {}
    for kind, window in windows.items():
      position_M = np.full(slots[kind], -1)
      # A ring also holds some tokens that have left the window.
      last = length - min(length, (window or length) + 1, slots[kind])
      text = [x for x in range(length) if x >= last or x < sinks.get(kind, 0)]
      places = rng.permutation(slots[kind])[: len(text)]
      position_M[places] = text
      self.content[kind] = position_M.copy()
      exists_M = rng.random(slots[kind]) < 0.9
      exists_M[places] = True
      held[kind] = beam_slots.Held(
        window, position_M, exists_M, pinned=sinks.get(kind, 0)
      )
    self.held = held
    self.tree = beam_tree.BeamTree(length, held)

  def path(self, node):
    path = []
    while node != -1:
      path.append(node)
      node = self.parents[node]
    return path[::-1]

  def position(self, node):
    return len(self.path(node)) - 1

  def grow(self, parent_L, resting=()):
    placed = self.tree.grow(parent_L, resting)
    nodes = [self._node(self.beams[parent]) for parent in parent_L]
    self._check(placed, nodes)
    self.resting = [self._all()[beam] for beam in resting]
    self.beams = nodes
    return placed

  def keep(self, survivor_L, resting=()):
    self.tree.keep(survivor_L, resting)
    self.resting = [self._all()[beam] for beam in resting]
    self.beams = [self.beams[survivor] for survivor in survivor_L]

  def settle(self, best):
    ranges = self.tree.settle(best)
    self.beams, self.resting = [self._all()[best]], []
    return ranges

  def _all(self):
    return self.beams + self.resting

  def _node(self, parent):
    self.parents.append(parent)
    return len(self.parents) - 1

  def _check(self, placed, nodes):
    """Each token sees its own path, as far as its layers do, and no more."""
    np.testing.assert_array_equal(
      placed.position_L, [self.position(node) for node in nodes]
    )
    for kind, window in self.windows.items():
      content_M, slot_L = self.content[kind], placed.slot[kind]
      sinks = self.sinks.get(kind, 0)
      past = _seen(
        placed.ranges[kind],
        *(placed.coordinate_L, placed.position_L, window, sinks),
      )
      for node, past_M in zip(nodes, past):
        seen = [*content_M[past_M], node]
        reach = self.path(node)
        if window:
          reach = {*reach[:sinks], *reach[-window:]}
        assert sorted(seen) == sorted(reach)
      kept = slot_L[slot_L >= 0]
      assert len(np.unique(kept)) == len(kept)
      assert self.held[kind].exists_M[kept].all()
      content_M[kept] = np.array(nodes)[slot_L >= 0]


def _seen(ranges, coordinate_L, position_L, window, sinks):
  visibility = visibility_lib.Visibility(
    ranges.start_M[None],
    ranges.limit_M[None],
    coordinate_L[None],
    position_L[None],
    ranges.position_M[None],
  )
  return visibility_lib.as_dense(visibility, window, sinks)[0]


def _room(windows, length, width, depth, candidates):
  """Slots for a whole search; as many more as random pages may be absent."""
  return {
    kind: 2
    * (length + toys.most_slots(length, width, depth, candidates, 0, window))
    for kind, window in windows.items()
  }


@pytest.mark.parametrize('seed', range(25))
def test_every_token_sees_its_path_and_nothing_else(seed):
  rng = np.random.default_rng(seed)
  length, width, depth = rng.integers(1, 20), rng.integers(1, 6), 24
  candidates = width + rng.integers(0, 4)
  windows = {'local': int(rng.integers(1, 9)), 'global': None}
  windows['local1+'] = int(rng.choice([1, windows['local']]))
  # More than the prompt has, or fewer.
  sinks = {'local1+': int(rng.integers(1, 25))}
  slots = _room(windows, length, candidates + 2, 4 * depth, candidates)
  slots['local1+'] += sinks['local1+'] * (2 * candidates + 2)
  history = History(rng, length, windows, slots, sinks)
  for _ in range(depth):
    match rng.integers(0, 7):
      case 0:
        history.settle(int(rng.integers(len(history._all()))))
      case _:
        beams, resting = len(history.beams), len(history.resting)
        stay = rng.permutation(beams + resting)[: rng.integers(0, 3)]
        history.grow(rng.integers(0, beams, candidates), stay)
        kept = rng.permutation(candidates)[:width]
        if rng.random() < 0.8:
          history.keep(kept, candidates + np.arange(len(stay)))
  np.testing.assert_array_equal(
    history.tree.position_L,
    [history.position(beam) for beam in history._all()],
  )


def _text(length, slots, window=None):
  position_M = np.full(slots, -1)
  position_M[:length] = np.arange(length)
  return beam_slots.Held(window, position_M, np.ones(slots, bool))


def _drawn(ranges):
  return ' '.join(
    f'{start}-{limit if limit < beam_slots.FOREVER else ""}'
    if start < limit
    else '.'
    for start, limit in zip(ranges.start_M, ranges.limit_M)
  )


def test_ranks_of_three_beams_and_the_slot_of_a_dead_one():
  tree = beam_tree.BeamTree(2, {'global': _text(2, 8)})
  first = tree.grow([0, 0])
  assert first.slot['global'].tolist() == [2, 3]
  assert first.coordinate_L.tolist() == [2, 3]
  assert _drawn(first.ranges['global']) == '0- 1- . . . . . .'
  # Listed as 1, 0, 1; in tree order the child of beam 0 comes first.
  second = tree.grow([1, 0, 1])
  assert second.slot['global'].tolist() == [4, 5, 6]
  assert second.coordinate_L.tolist() == [3, 2, 4]
  assert _drawn(second.ranges['global']) == '0- 1- 2-3 3-5 . . . .'
  # Both children of beam 1 live on: slots 2 and 5 are free, 3 is of the trunk.
  tree.keep([2, 0])
  third = tree.grow([0, 1])
  assert third.slot['global'].tolist() == [2, 5]
  assert _drawn(third.ranges['global']) == '0- 1- . 2- 3-4 . 4-5 .'


def test_a_settled_beam_is_text():
  tree = beam_tree.BeamTree(2, {'global': _text(2, 8), 'local': _text(2, 8, 3)})
  tree.grow([0, 0])
  tree.grow([1, 0])
  ranges = tree.settle(0)
  assert _drawn(ranges['global']) == '0- 1- . 2- 3- . . .'
  assert ranges['global'].position_M.tolist() == [0, 1, 0, 2, 3, 0, 0, 0]
  # Slot 0 was free again when position 3 came: it looks back to position 1.
  assert _drawn(ranges['local']) == '3- . . 2- . . . .'
  slots = tree.slots_of_text()
  assert slots['global'].tolist() == [0, 1, 3, 4]
  assert slots['local'].tolist() == [-1, -1, 3, 0]


@pytest.mark.parametrize('window', [None, 1, 2, 5, 100])
@pytest.mark.parametrize('length', [1, 3, 30])
def test_beams_without_a_common_token_take_a_slot_each(length, window):
  width, depth, candidates = 3, 12, 5
  needed = toys.most_slots(length, width, depth, candidates, 0, window)

  def run(room):
    tree = beam_tree.BeamTree(length, {'k': _text(length, room, window)})
    for step in range(depth):
      tree.grow([0, 1, 2, 2, 2] if step else [0] * candidates)
      tree.keep([0, 1, 2])

  run(max(needed, length))
  # Behind a window of one no token is read by another.
  if window != 1 and needed > length:
    with pytest.raises(beam_slots.Exhausted):
      run(needed - 1)


@pytest.mark.parametrize('window', [None, 2, 5, 100])
@pytest.mark.parametrize('ended', [0, 3, 10])
def test_a_beam_that_rests_has_its_slots(ended, window):
  length, depth = 30, 12
  room = max(toys.most_slots(length, 2, depth, 2, 1, window), length)
  tree = beam_tree.BeamTree(length, {'k': _text(length, room, window)})
  for step in range(depth - 1):
    tree.grow([0, 1] if step else [0, 0], [2] if step > ended else [])
    if step == ended:
      # Beam 1 ends, and the other has two children.
      tree.keep([0], resting=[1])
      tree.grow([0, 0], resting=[1])


def test_beams_that_agree_share_their_slots():
  width, depth = 4, 50
  # All but the last tokens are one path.
  tree = beam_tree.BeamTree(3, {'global': _text(3, 3 + depth - 1 + width)})
  for step in range(depth):
    # All come from one beam each time, so that its path is the only one.
    tree.grow([step % width if step else 0] * width)


def test_a_resting_beam_keeps_its_slots_unseen():
  tree = beam_tree.BeamTree(1, {'global': _text(1, 8)})
  tree.grow([0, 0])
  tree.keep([0], resting=[1])
  with pytest.raises(ValueError, match='expected numbers of beams, 0…0'):
    tree.grow([1])
  placed = tree.grow([0, 0], resting=[1])
  assert placed.slot['global'].tolist() == [3, 4]
  assert _drawn(placed.ranges['global']) == '0- 1-3 . . . . . .'
  # Beams 0 and 1 are the new ones, 2 the one that rests, in slot 2.
  ranges = tree.settle(2)
  assert _drawn(ranges['global']) == '0- . 1- . . . . .'


def test_a_beam_that_rested_early_adopts_its_own_tokens_and_no_more():
  """Others grew by five tokens since it ended; its text has none of them."""
  tree = beam_tree.BeamTree(11, {'global': _text(11, 40)})
  for _ in range(6):
    tree.grow([0, 0])
  tree.keep([0], resting=[1])
  for _ in range(5):
    tree.grow([0, 0], resting=[1])
    tree.keep([0], resting=[2])
  position = int(tree.position_L[1])
  tree.settle(1)
  slots = tree.slots_of_text()['global']
  assert position == 16 and len(slots) == 17
  assert slots[:11].tolist() == list(range(11))
  assert slots.min() >= 0 and len(set(slots.tolist())) == 17
  assert tree.grow([0]).coordinate_L.tolist() == [17]


def test_exhausted_slots_are_named_and_change_nothing():
  held = {'local': _text(3, 20, 4), 'global': _text(3, 7)}
  tree = beam_tree.BeamTree(3, held)
  tree.grow([0, 0])
  message = (
    'global: 3 new tokens need a slot each, and of the 7 slots of the row 2 are'
    ' free; the beams hold 5. This step takes a row of at least 8.'
  )
  for _ in range(2):
    with pytest.raises(beam_slots.Exhausted, match=re.escape(message)):
      tree.grow([0, 1, 1])
  assert tree.grow([1, 0]).slot['global'].tolist() == [5, 6]


@pytest.mark.parametrize(
  'call, message',
  [
    (lambda tree: tree.grow([2]), 'parent_L=[2]: expected numbers of beams'),
    (lambda tree: tree.grow([]), 'parent_L=[]: expected numbers of beams'),
    (
      lambda tree: tree.keep([-1]),
      'survivor_L=[-1]: expected numbers of beams',
    ),
    (lambda tree: tree.keep([1, 1]), 'survivor_L=[1, 1] names a beam twice'),
    (
      lambda tree: tree.grow([0], resting=[3]),
      'resting=[3]: expected numbers of beams, 0…1',
    ),
    (lambda tree: tree.settle(2), 'best=[2]: expected numbers of beams'),
  ],
)
def test_a_missing_beam_is_refused(call, message):
  tree = beam_tree.BeamTree(1, {'global': _text(1, 9)})
  tree.grow([0, 0])
  with pytest.raises(ValueError, match=re.escape(message)):
    call(tree)


@pytest.mark.parametrize(
  'length, held, message',
  [
    (0, {'global': _text(0, 4)}, 'length=0: beams grow from at least one'),
    (2, {}, 'held is empty'),
    (3, {'global': _text(2, 4)}, "held['global'].position_M has 2 slots with"),
    (3, {'local': _text(2, 4, 2)}, 'expected each of 2…2 once'),
    (
      2,
      {'global': _text(2, 4)._replace(exists_M=np.arange(4) < 1)},
      'in slots that exist',
    ),
  ],
)
def test_a_row_without_its_text_is_refused(length, held, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    beam_tree.BeamTree(length, held)
