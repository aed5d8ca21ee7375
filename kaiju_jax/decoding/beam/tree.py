"""A tree of beams: assigns cache slots to the live beams of one row.

The *trunk* is the text that all live beams share: the prompt, and later every
token on which they agree. Beyond the trunk each beam has a path of slots, and
paths share slots as far as they share tokens. A fork copies slot numbers, never
keys or values. A slot that no live path holds is free (`slots.py`).

Ranges say which queries see a slot (`visibility.py`). A token of the trunk has
its position as coordinate and is seen from there on, as in any text. Beyond a
trunk of t tokens,

    coordinate = t + rank of the beam in tree order

so that the descendants of a token form one contiguous range. A tree order only
needs siblings to keep the order of their parents.

Everything is numpy on the host: L live beams, M slots of the row, N tokens of a
path. A step takes O(M + L·N) numpy operations.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.beam import slots as beam_slots


class TokenLayout(NamedTuple):
  """The places of the beams' next tokens, and what they see; int32."""

  # By layer kind [L], each token's slot; −1 if no later token sees it.
  slot: dict[str, np.ndarray]
  # The token's coordinate, the only one that sees it now.
  coordinate_L: np.ndarray
  # The token's position along its path.
  position_L: np.ndarray
  # By layer kind, the ranges of the row's slots for these tokens; those of
  # their own slots are empty.
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
    number_L1 = np.arange(len(paths.position_L))[:, None]
    is_new_L1 = number_L1 < paths.live
    new_L1 = np.where(is_new_L1, number_L1, -1)
    position_L1 = paths.position_L[:, None] + 1
    end_L = paths.position_L + is_new_L1[:, 0]
    coordinate_L = paths.trunk + paths.rank_L[: paths.live]
    order_L = np.argsort(coordinate_L)
    ranges, grown, slot = {}, {}, {}
    for kind, slots in paths.slots.items():
      ranges[kind] = beam_slots.ranges(slots, order_L, coordinate_L[order_L])
      grown[kind], slot_L1 = beam_slots.place(
        kind, slots, is_new_L1, position_L1, end_L
      )
      slot[kind] = slot_L1[is_new_L1].astype(np.int32)
    self._paths = paths._replace(
      position_L=end_L,
      node_LN=np.concatenate([paths.node_LN, new_L1], axis=1),
      slots=grown,
    )
    return TokenLayout(
      slot,
      coordinate_L.astype(np.int32),
      position_L1[is_new_L1].astype(np.int32),
      ranges,
    )

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

  def settle(self, best: int) -> dict[str, beam_slots.Ranges]:
    """Makes one beam its row's text, and returns the row's ranges by kind.

    Raises ValueError if there is no such beam, alive or resting.
    """
    best_L = _check_numbers('best', [best], len(self._paths.position_L))
    self._paths = _fork(self._paths, best_L, 1)
    one_L = np.zeros(1, np.int64)
    return {
      kind: beam_slots.ranges(slots, one_L, one_L)
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


class _Paths(NamedTuple):
  """The beams; only the first `live` are alive and have a rank."""

  trunk: int
  live: int
  rank_L: np.ndarray
  position_L: np.ndarray
  # Numbers the tokens of each column, −1 where a path has none.
  node_LN: np.ndarray
  # Their paths have −1 also where a token has no slot.
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
