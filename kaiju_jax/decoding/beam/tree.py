"""A tree of beams: assigns cache slots to the live beams of one row.

The *trunk* is the text that all live beams share: the prompt, and later every
token on which they agree. Beyond the trunk each beam has a path of slots, and
paths share slots as far as they share tokens. A fork copies slot numbers, never
keys or values. A slot that no live path holds is free (`slots.py`).

Ranges say which queries see a slot (`visibility.py`). A token of the trunk has
its position as coordinate and is seen from there on, as in any text. Beyond a
trunk of t tokens,

    coordinate = t + rank of the beam in tree order    (one token per beam)
    coordinate = t + place in preorder of all tokens   (several per beam)

With both, the descendants of a token form one contiguous range. With ranks, a
chunk of several tokens per beam would see its own future. A tree order only
needs siblings to keep the order of their parents.

Everything is numpy on the host: L live beams or tokens of a chunk, M slots of
the row, N tokens of a path. A step takes O(M + L·N) numpy operations.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.beam import slots as beam_slots


class TokenLayout(NamedTuple):
  """The places of a chunk's tokens: their slots, and what they see; int32.

  Attributes:
    slot: by layer kind [L], each token's slot; −1 if no later token sees it.
    start_L: first coordinate that sees the token; limit_L is one past the last.
    coordinate_L, position_L: the token's own, and its position along its path.
    ranges: by layer kind, the ranges of the row's slots for this chunk; those
      of the chunk's own slots are empty.
  """

  slot: dict[str, np.ndarray]
  start_L: np.ndarray
  limit_L: np.ndarray
  coordinate_L: np.ndarray
  position_L: np.ndarray
  ranges: dict[str, beam_slots.Ranges]


class BeamTree:
  """The beams of one row; at first there is one, the prompt.

  Beams are numbered as the last call listed them: first the live ones, which
  are the candidates of `grow` or the survivors of `keep`, then the resting
  ones. A resting beam keeps its slots and does not grow; no other beam sees the
  slots that it alone holds. A call that raises changes nothing.
  """

  def __init__(self, length: int, held: Mapping[str, beam_slots.Held]):
    """Takes over a row of text; by kind, `held` are the slots of its tokens.

    Raises ValueError: no text, no kinds, or a kind that does not hold exactly
    once each position that its layers will read.
    """
    if length < 1:
      raise ValueError(f'length={length}: beams grow from at least one token.')
    if not held:
      raise ValueError('held is empty: a row has slots of at least one kind.')
    self._paths = _Paths(
      trunk=length,
      live=1,
      rank_L=np.zeros(1, np.int64),
      position_L=np.array([length - 1]),
      node_LN=np.zeros((1, 0), np.int64),
      slots={
        kind: beam_slots.take_over(kind, length, *text)
        for kind, text in held.items()
      },
    )

  @property
  def position_L(self) -> np.ndarray:
    """The position of each beam's newest token, resting beams included."""
    return self._paths.position_L.copy()

  def count_filled(self, kind: str) -> int:
    """Returns how many of the kind's slots hold tokens of the beams."""
    slots = self._paths.slots[kind]
    return int(slots.exists_M.sum()) - len(beam_slots.free_slots(slots))

  def grow(
    self, parent_L: Sequence[int], resting: Sequence[int] = ()
  ) -> TokenLayout:
    """Gives each of L candidates a slot, and a place after its parent.

    `parent_L` has the live beam that each follows. Beams that are no parent and
    not `resting` are dropped first; the candidates are then the live ones.
    Raises ValueError: no candidates, or no such beam; Exhausted: too few free
    slots.
    """
    paths = self._fork('parent_L', parent_L, resting)
    count_L = np.arange(len(paths.position_L)) < paths.live
    return self._append(paths, count_L.astype(np.int64), _by_rank)

  def keep(
    self, survivor_L: Sequence[int], resting: Sequence[int] = ()
  ) -> None:
    """Keeps `survivor_L` alive, numbered in that order, and `resting`.

    Raises ValueError: no survivors, one named twice, or no such live beam.
    """
    if len(np.unique(survivor_L)) < len(survivor_L):
      raise ValueError(
        f'survivor_L={list(survivor_L)} names a beam twice: a beam survives'
        ' once.'
      )
    self._paths = self._fork('survivor_L', survivor_L, resting)

  def follow(self, count_L: Sequence[int]) -> TokenLayout:
    """Places a chunk of `count_L[l]` tokens after each live beam l.

    It lists them beam by beam, with new coordinates in token order, so that no
    token sees a later one. Raises ValueError: counts that are negative, all 0,
    or not one per live beam; Exhausted: too few free slots.
    """
    count_L = np.asarray(count_L)
    live, beams = self._paths.live, len(self._paths.position_L)
    if count_L.shape != (live,) or count_L.min() < 0 or not count_L.any():
      raise ValueError(
        f'count_L={count_L.tolist()}: expected {live} counts of at least 0,'
        ' one for each live beam, and not all 0.'
      )
    paths = _fork(self._paths, np.arange(beams), live)
    count_L = np.concatenate([count_L, np.zeros(beams - live, np.int64)])
    return self._append(paths, count_L, _by_token)

  def settle(self, best: int) -> dict[str, beam_slots.Ranges]:
    """Makes one beam its row's text, and returns the row's ranges by kind.

    Raises ValueError if there is no such beam, alive or resting.
    """
    best_L = _check_numbers('best', [best], len(self._paths.position_L))
    self._paths = _fork(self._paths, best_L, 1)
    one_L, none_LN = np.zeros(1, np.int64), np.zeros((1, 0), np.int64)
    return {
      kind: beam_slots.ranges(slots, one_L, none_LN, one_L)
      for kind, slots in self._paths.slots.items()
    }

  def slots_of_text(self) -> dict[str, np.ndarray]:
    """Returns by kind the slot of each position of the trunk, −1 if dropped."""
    result = {}
    for kind, slots in self._paths.slots.items():
      result[kind] = np.full(self._paths.trunk, -1, np.int32)
      result[kind][slots.position_M[slots.trunk]] = slots.trunk
    return result

  def _fork(self, name: str, beam_L, resting) -> '_Paths':
    live, beams = self._paths.live, len(self._paths.position_L)
    beam_L = _check_numbers(name, beam_L, live)
    if len(resting):
      resting = _check_numbers('resting', resting, beams)
      beam_L = np.concatenate([beam_L, resting])
    return _fork(self._paths, beam_L, len(beam_L) - len(resting))

  def _append(self, paths: '_Paths', count_L, coordinates) -> TokenLayout:
    """Lets each path grow by its count, if there is a slot for each token."""
    is_new_LN = np.arange(count_L.max()) < count_L[:, None]
    new_LN = np.where(is_new_LN, _numbers(is_new_LN), -1)
    node_LN = np.concatenate([paths.node_LN, new_LN], axis=1)
    position_LN = paths.position_L[:, None] + 1 + np.arange(count_L.max())
    end_L = paths.position_L + count_L
    order_L = np.argsort(paths.rank_L[: paths.live])
    start_LN, limit_L = coordinates(node_LN[order_L])
    start_LN, limit_L = start_LN + paths.trunk, limit_L + paths.trunk
    ranges, grown, slot = {}, {}, {}
    for kind, slots in paths.slots.items():
      ranges[kind] = beam_slots.ranges(slots, order_L, start_LN, limit_L)
      grown[kind], slot_LN = beam_slots.place(
        kind, slots, is_new_LN, position_LN, end_L
      )
      slot[kind] = slot_LN[is_new_LN].astype(np.int32)
    self._paths = paths._replace(position_L=end_L, node_LN=node_LN, slots=grown)
    own_LN = np.empty_like(position_LN)
    own_limit_LN = np.empty_like(position_LN)
    own_LN[order_L] = start_LN[:, -own_LN.shape[1] :]
    own_limit_LN[order_L] = limit_L[:, None]
    start_L, limit_L, position_L = (
      x_LN[is_new_LN].astype(np.int32)
      for x_LN in (own_LN, own_limit_LN, position_LN)
    )
    return TokenLayout(
      slot, start_L, limit_L, start_L.copy(), position_L, ranges
    )


class _Paths(NamedTuple):
  """The beams; the first `live` of them are alive, and only these have a rank.

  `node_LN` numbers the tokens of each column, −1 where a path has none. The
  paths in `slots` have −1 also where a token has no slot.
  """

  trunk: int
  live: int
  rank_L: np.ndarray
  position_L: np.ndarray
  node_LN: np.ndarray
  slots: dict[str, beam_slots.Slots]


def _check_numbers(name: str, beam_L, beams: int) -> np.ndarray:
  """Returns beam numbers as an array, checked to be 0…beams − 1."""
  beam_L = np.asarray(beam_L)
  if (
    beam_L.ndim != 1
    or beam_L.dtype.kind not in 'iu'
    or beam_L.min() < 0
    or beam_L.max() >= beams
  ):
    raise ValueError(
      f'{name}={beam_L.tolist()}: expected numbers of beams, 0…{beams - 1}, at'
      ' least one.'
    )
  return beam_L


def _fork(paths: _Paths, beam_L: np.ndarray, live: int) -> _Paths:
  """Returns the paths of `beam_L`, without slots that nothing will read."""
  position_L = paths.position_L[beam_L]
  slots = {
    kind: beam_slots.forget(
      x._replace(path_LN=x.path_LN[beam_L]), position_L + 1
    )
    for kind, x in paths.slots.items()
  }
  order_L = np.argsort(paths.rank_L[beam_L[:live]], kind='stable')
  rank_L = np.arange(len(beam_L))
  rank_L[order_L] = np.arange(live)
  node_LN = paths.node_LN[beam_L]
  return _merge(_Paths(paths.trunk, live, rank_L, position_L, node_LN, slots))


def _merge(paths: _Paths) -> _Paths:
  """Returns the paths with their common first tokens moved to the trunk."""
  agree_N = (paths.node_LN == paths.node_LN[0]).all(axis=0)
  N = len(agree_N) if agree_N.all() else int(np.argmin(agree_N))
  slots = {}
  for kind, x in paths.slots.items():
    shared = x.path_LN[0, :N]
    slots[kind] = x._replace(
      trunk=np.concatenate([x.trunk, shared[shared >= 0]]),
      path_LN=x.path_LN[:, N:],
    )
  return paths._replace(
    trunk=paths.trunk + int((paths.node_LN[0, :N] >= 0).sum()),
    node_LN=paths.node_LN[:, N:],
    slots=slots,
  )


def _by_rank(node_LN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the tokens' coordinates by rank, and each path's range end.

  Paths are in tree order; for a token that several share, the first counts.
  """
  rank_L = np.arange(len(node_LN))
  return np.broadcast_to(rank_L[:, None], node_LN.shape), rank_L + 1


def _by_token(node_LN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the same as `_by_rank`, in preorder of the tokens."""
  is_first_LN = node_LN >= 0
  is_first_LN[1:] &= node_LN[1:] != node_LN[:-1]
  return _numbers(is_first_LN), np.cumsum(is_first_LN.sum(axis=1))


def _numbers(is_cell_LN: np.ndarray) -> np.ndarray:
  """Returns how many cells come before each, row by row."""
  return (np.cumsum(is_cell_LN) - is_cell_LN.ravel()).reshape(is_cell_LN.shape)
