"""Turns a cache row of text into a tree of beams, and a beam back into text.

A tree keeps its tokens in any slots of the row and says at every step which
queries see them (`tree.py`). Text lies in order of position, as far as the row
has turned (`cache.py`). Nothing moves during the search. After it, each token
of the chosen path moves at most once, within its row's pages.
"""

from collections.abc import Mapping

import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding.beam import slots as beam_slots
from kaiju_jax.decoding.beam import tree as beam_tree
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.pages import rows as rows_lib
from kaiju_jax.model import paging


def find_held(
  account: rows_lib.Rows,
  pools: Mapping[str, paging.Pool],
  row: int,
  length: int,
  keeps_pages: bool = False,
) -> dict[str, beam_slots.Held]:
  """Returns by layer kind which slots of a lent row hold its text.

  If `keeps_pages`, beams keep all tokens of the pages that a point of their
  text holds; otherwise those of the window.
  """
  tables, firsts = account.table(row), account.firsts(row)
  oldest_kept = account.oldest_kept(row)
  result = {}
  for kind, pool in pools.items():
    slot_M, pinned = np.arange(pool.row_slots), pool.pinned_slots
    position_M = paging.spread(slot_M, firsts[kind], pinned)
    is_held_M = (position_M >= oldest_kept[kind]) | (slot_M < pinned)
    is_held_M &= position_M < length
    result[kind] = beam_slots.Held(
      pool.window,
      np.where(is_held_M, position_M, -1),
      np.repeat(tables[kind] >= 0, pool.page),
      pool.page if keeps_pages else 1,
      pinned,
    )
  return result


def chunk(
  row: int, placed: beam_tree.TokenLayout, tokens_L: np.ndarray, size: int
) -> extend.Chunk:
  """Returns a call of `size` tokens: those that a tree placed, and padding.

  Padding stands where the last token does, so that a page that all tokens see
  is a page that all queries see. Raises ValueError for more tokens than `size`,
  or not one for each place.
  """
  count = len(placed.position_L)
  if len(tokens_L) != count or count > size:
    raise ValueError(
      f'tokens_L has {len(tokens_L)} tokens and size={size}: expected the'
      f' {count} that were placed, and a size of at least as many.'
    )

  def padded(x_L, mode, **options):
    return np.pad(x_L, (0, size - count), mode, **options)[None]

  position_BL = padded(placed.position_L, 'edge')
  return extend.Chunk(
    np.array([row], np.int32),
    padded(np.asarray(tokens_L, np.int32), 'constant'),
    visibility_lib.Visibility(
      padded(placed.coordinate_L, 'constant'),
      padded(placed.coordinate_L + 1, 'constant'),
      padded(placed.coordinate_L, 'edge'),
      position_BL,
      position_BL,
    ),
    {
      kind: padded(slot_L, 'constant', constant_values=-1)
      for kind, slot_L in placed.slot.items()
    },
  )


def order(
  pools: Mapping[str, paging.Pool],
  slots: Mapping[str, np.ndarray],
  first: Mapping[str, int],
  length: int,
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
  """Returns which slot each token of a text comes from, for `cache.settle`.

  By kind, `slots` has the slot of each position, −1 where it is gone, and
  `first` by how many positions the row had turned. The result has by kind the
  slot whose token slot m gets, int32 [M], −1 for none, and by how many
  positions the row has turned.
  """
  sources, firsts = {}, {}
  for kind, pool in pools.items():
    firsts[kind] = first[kind] + pool.turns(first[kind], length) * pool.page
    position_M = paging.spread(
      np.arange(pool.row_slots), firsts[kind], pool.pinned_slots
    )
    sources[kind] = np.full(pool.row_slots, -1, np.int32)
    is_text_M = position_M < len(slots[kind])
    sources[kind][is_text_M] = slots[kind][position_M[is_text_M]]
  return sources, firsts
