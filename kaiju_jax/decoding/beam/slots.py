"""The slots of one layer kind that the beams of a row hold.

All beams share the slots of the trunk. Beyond it each beam has a path of slots,
and paths share slots as far as they share tokens. A slot that no path holds is
free; in a local layer also one that lies before the window (or before the page
in which the window begins) of every live beam's next token, unless it is in a
pinned page, which sinks are in.

Everything is numpy on the host, with the letters of `tree.py`.
"""

from typing import Any
from typing import NamedTuple

import numpy as np

FOREVER = np.iinfo(np.int32).max


class Exhausted(RuntimeError):
  """An error: a row has fewer free slots than the beams' new tokens need."""


class Held(NamedTuple):
  """The slots of one layer kind that hold a row's text."""

  # Tokens that these layers see, the query included; None for all.
  window: int | None
  # The position of the token in each slot; −1 for an empty slot.
  position_M: np.ndarray
  # Whether the slot has a page.
  exists_M: np.ndarray
  # Positions kept or dropped together, from multiples of it on; a page's size
  # if a point is to be made of the result, because it holds whole pages.
  page: int = 1
  # Positions before this one are never dropped.
  pinned: int = 0


class Ranges(NamedTuple):
  """For each slot the coordinates [start, limit) that see it, int32."""

  # An empty range is a slot that nothing sees.
  start_M: np.ndarray
  limit_M: np.ndarray
  # The position, along its path, of the token in the slot.
  position_M: np.ndarray


class Slots(NamedTuple):
  """One kind's slots: `trunk` holds the shared text, path_LN the beams'."""

  window: int | None
  page: int
  pinned: int
  position_M: np.ndarray
  exists_M: np.ndarray
  trunk: np.ndarray
  path_LN: np.ndarray


def take_over(
  kind, length, window, position_M, exists_M, page, pinned
) -> Slots:
  """Returns the slots of a row of text, all in the trunk."""
  position_M, exists_M = np.array(position_M), np.asarray(exists_M, bool)
  trunk = np.flatnonzero(position_M >= 0)
  first = 0 if window is None else _first(max(0, length - window + 1), page)
  expected = np.arange(length)
  expected = expected[(expected >= first) | (expected < pinned)]
  read = position_M[trunk]
  read = np.sort(read[(read >= first) | (read < pinned)])
  if not np.array_equal(read, expected) or not exists_M[trunk].all():
    raise ValueError(
      f'held[{kind!r}].position_M has {len(read)} slots with positions from'
      f' {first} on: expected each of {first}…{length - 1} once, in slots that'
      ' exist.'
    )
  path_LN = np.zeros((1, 0), np.int64)
  return Slots(window, page, pinned, position_M, exists_M, trunk, path_LN)


def forget(slots: Slots, next_L: np.ndarray) -> Slots:
  """Drops the slots outside the window of the tokens at `next_L`."""
  if slots.window is None:
    return slots
  first_L = _first(next_L - slots.window + 1, slots.page)
  position_LN = slots.position_M[slots.path_LN]
  is_gone_LN = position_LN < first_L[:, None]
  is_gone_LN &= position_LN >= slots.pinned
  position = slots.position_M[slots.trunk]
  is_gone = (position < first_L.min()) & (position >= slots.pinned)
  return slots._replace(
    trunk=slots.trunk[~is_gone],
    path_LN=np.where(is_gone_LN, -1, slots.path_LN),
  )


def _first(position, page: int):
  return position // page * page


def free_slots(slots: Slots) -> np.ndarray:
  """Returns the slots that no path holds, in order."""
  is_free_M = slots.exists_M.copy()
  is_free_M[slots.trunk] = False
  is_free_M[slots.path_LN[slots.path_LN >= 0]] = False
  return np.flatnonzero(is_free_M)


def place(
  kind: Any,
  slots: Slots,
  is_new_LN: np.ndarray,
  position_LN: np.ndarray,
  end_L: np.ndarray,
):
  """Returns the slots with longer paths, and the slots of the new tokens.

  It takes the lowest free slots first to keep live tokens close together: a
  page in which no query sees a slot is not read.
  """
  is_kept_LN = is_new_LN
  if slots.window is not None:
    first_L = _first(end_L + 2 - slots.window, slots.page)
    is_kept_LN = position_LN >= first_L[:, None]
    is_kept_LN = is_new_LN & (is_kept_LN | (position_LN < slots.pinned))
  free = free_slots(slots)
  needed = int(is_kept_LN.sum())
  if needed > len(free):
    exists = int(slots.exists_M.sum())
    held = exists - len(free)
    raise Exhausted(
      f'{kind}: {needed} new tokens need a slot each, and of the'
      f' {exists} slots of the row {len(free)} are free; the beams hold'
      f' {held}. This step takes a row of at least {held + needed}.'
    )
  slot_LN = np.full(is_new_LN.shape, -1, np.int64)
  slot_LN[is_kept_LN] = free[:needed]
  position_M = slots.position_M.copy()
  position_M[free[:needed]] = position_LN[is_kept_LN]
  path_LN = np.concatenate([slots.path_LN, slot_LN], axis=1)
  return slots._replace(position_M=position_M, path_LN=path_LN), slot_LN


def ranges(
  slots: Slots, order_L: np.ndarray, coordinate_L: np.ndarray
) -> Ranges:
  """Returns the range of each slot; the beams' coordinates are in tree order.

  If several beams share a slot, the first says where its range starts and the
  last where it ends: two assignments to one index keep the later value.
  """
  start_M = np.zeros(len(slots.position_M), np.int32)
  limit_M = np.zeros_like(start_M)
  position_M = np.zeros_like(start_M)
  start_M[slots.trunk] = slots.position_M[slots.trunk]
  limit_M[slots.trunk] = FOREVER
  path_LN = slots.path_LN[order_L]
  is_held_LN = path_LN >= 0
  path = path_LN[is_held_LN]
  coordinate_LN = np.broadcast_to(coordinate_L[:, None], path_LN.shape)
  coordinate = coordinate_LN[is_held_LN]
  start_M[path[::-1]] = coordinate[::-1]
  limit_M[path] = coordinate + 1
  is_seen_M = limit_M > start_M
  position_M[is_seen_M] = slots.position_M[is_seen_M]
  return Ranges(start_M, limit_M, position_M)
