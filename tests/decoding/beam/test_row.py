"""Where a tree's tokens go in a call, and where its text goes after it."""

import re

import numpy as np
import pytest

from kaiju_jax.decoding.beam import row as beam_row
from kaiju_jax.decoding.beam import slots as beam_slots
from kaiju_jax.decoding.beam import tree as beam_tree
from kaiju_jax.model import paging


def test_text_goes_back_to_its_order_and_a_ring_begins_with_a_page():
  pools = {
    'local': paging.Pool((0,), 3, page=2, row_pages=3, pages=3),
    'global': paging.Pool((1,), None, page=2, row_pages=5, pages=5),
    'local3+1': paging.Pool((2,), 3, page=2, row_pages=4, pages=4, sinks=1),
  }
  slots = {
    'local': np.array([-1, -1, -1, -1, -1, -1, 5, 0, 2]),
    'global': np.array([0, 1, 2, 3, 9, 4, 8, 7, 5]),
    'local3+1': np.array([7, 1, -1, -1, -1, -1, 5, 0, 2]),
  }
  first = {'local': 2, 'global': 0, 'local3+1': 0}
  sources, firsts = beam_row.order(pools, slots, first, 9)
  # Nine tokens end beyond position 2 + 6, so the ring turns by a page of two,
  # and the one with a pinned page from position 8 on likewise.
  assert firsts == {'local': 4, 'global': 0, 'local3+1': 2}
  assert sources['local3+1'].tolist() == [7, 1, -1, -1, 5, 0, 2, -1]
  assert sources['local'].tolist() == [-1, -1, 5, 0, 2, -1]
  assert sources['global'].tolist() == [0, 1, 2, 3, 9, 4, 8, 7, 5, -1]


def placed():
  held = beam_slots.Held(2, np.array([0, 1, -1, -1, -1]), np.ones(5, bool))
  return beam_tree.BeamTree(2, {'local': held}).grow([0, 0, 0])


def test_padding_stands_with_the_last_token_and_is_nowhere():
  chunk = beam_row.chunk(7, placed(), [4, 5, 6], 5)
  assert chunk.row_B.tolist() == [7]
  assert chunk.tokens_BL.tolist() == [[4, 5, 6, 0, 0]]
  assert chunk.slot['local'].tolist() == [[0, 2, 3, -1, -1]]
  visibility = chunk.visibility
  assert visibility.coordinate_BL.tolist() == [[2, 3, 4, 4, 4]]
  assert visibility.position_BL.tolist() == [[2, 2, 2, 2, 2]]
  is_seen_BM = visibility.start_BM < visibility.limit_BM
  assert is_seen_BM.tolist() == [[True, True, True, False, False]]


@pytest.mark.parametrize('tokens, size', [([4, 5], 5), ([4, 5, 6], 2)])
def test_a_chunk_of_another_size_is_refused(tokens, size):
  message = f'tokens_L has {len(tokens)} tokens and size={size}: expected the 3'
  with pytest.raises(ValueError, match=re.escape(message)):
    beam_row.chunk(0, placed(), tokens, size)
