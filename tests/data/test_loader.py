"""Batches come in one order, whatever interrupts it."""

import json
import threading

import numpy as np
import pytest

from kaiju_jax.data import loader
from kaiju_jax.data import packing
from kaiju_jax.data import text as text_lib
from tests.data import toys

pytestmark = pytest.mark.versions


def _rows():
  rng = np.random.default_rng(0)
  texts = (
    ''.join(map(chr, rng.integers(97, 123, rng.integers(5, 60))))
    for _ in range(17)
  )
  return text_lib.Rows(toys.corpus(*texts), 16, seed=1)


class Asked:
  """Rows that remember which of them were read."""

  def __init__(self, rows):
    self.rows, self.read = rows, []
    self.ahead = threading.Event()

  def __len__(self):
    return len(self.rows)

  def __getitem__(self, index):
    self.read.append(index)
    if len(self.read) == 6:
      self.ahead.set()
    return self.rows[index]


def _assert_equal(one, other):
  assert one.extras is other.extras is None
  for name, a, b in zip(packing.Batch._fields[:-1], one, other):
    np.testing.assert_array_equal(a, b, err_msg=name)
    assert a.dtype == b.dtype


def test_batches_hold_the_rows_in_order():
  rows = _rows()
  batches = loader.batches(rows, batch=3, microbatches=2)
  for step in range(12):
    batch = next(batches)
    assert isinstance(batch, packing.Batch)
    for place in range(6):
      row = rows[step * 6 + place]
      for field, expected in zip(batch[:-1], row):
        assert field.shape == (2, 3, 16)
        np.testing.assert_array_equal(field[place // 3, place % 3], expected)
  assert 2 * len(rows) < 12 * 6, 'the test passes epochs'


def test_resume_at_any_batch_equals_the_uninterrupted_order():
  rows = _rows()
  straight = loader.batches(rows, batch=2)
  states, expected = [], []
  for _ in range(80):
    states.append(json.loads(json.dumps(straight.get_state())))
    expected.append(next(straight))
  rng = np.random.default_rng(3)
  resumed = loader.batches(_rows(), batch=2)
  for begin in rng.integers(0, 79, 30).tolist():
    fresh = loader.batches(_rows(), batch=2)
    for batches in (resumed, fresh):
      batches.set_state(states[begin])
      for step in range(begin, min(begin + 1 + begin % 4, 80)):
        assert batches.get_state() == states[step]
        _assert_equal(next(batches), expected[step])
    fresh.close()


def test_a_run_may_go_on_with_another_batch_size():
  rows = _rows()
  small = loader.batches(rows, batch=2)
  for _ in range(3):
    next(small)
  large = loader.batches(rows, batch=2, microbatches=2)
  large.set_state(small.get_state())
  tokens = next(large).tokens_BL
  np.testing.assert_array_equal(tokens[0], next(small).tokens_BL[0])
  np.testing.assert_array_equal(tokens[1], next(small).tokens_BL[0])
  assert large.get_state() == small.get_state() == {'row': 10}


def test_rows_that_do_not_count_are_not_drawn():
  """Steps of 1, 2 and 3 microbatches in arrays of three; then again."""
  begins = [12 * turn + first for turn in range(9) for first in (0, 2, 6)]

  def after(row, steps):
    return begins[begins.index(row) + steps]

  rows, source = _rows(), Asked(_rows())
  batches = loader.batches(source, batch=2, microbatches=3, after=after)
  for step in range(4):
    begin, end = begins[step], begins[step + 1]
    assert batches.get_state() == {'row': begin}
    batch = next(batches)
    assert batch.tokens_BL.shape == (3, 2, 16)
    tokens = batch.tokens_BL.reshape(6, 16)
    for place in range(end - begin):
      np.testing.assert_array_equal(tokens[place], rows[begin + place].tokens)
    assert not batch.weight_BL.reshape(6, 16)[end - begin :].any()
    assert (batch.source_BL.reshape(6, 16)[end - begin :] == -1).all()
  batches.close()
  assert source.read[:14] == list(range(14)), 'none twice, none left out'
  resumed = loader.batches(rows, batch=2, microbatches=3, after=after)
  resumed.set_state({'row': 12})
  _assert_equal(next(resumed), batch)
  resumed.close()


def test_only_rows_that_were_handed_out_count():
  """The thread runs ahead of the state, which may begin anywhere."""
  source = Asked(_rows())
  batches = loader.batches(source, batch=2, start=5)
  assert batches.get_state() == {'row': 5}
  batch = next(batches)
  assert source.ahead.wait(10)
  assert batches.get_state() == {'row': 7}
  for place in range(2):
    np.testing.assert_array_equal(
      batch.tokens_BL[0, place], source.rows[5 + place].tokens
    )


def test_an_error_in_a_row_reaches_the_reader():
  class Broken:
    def __len__(self):
      return 1

    def __getitem__(self, index):
      raise ValueError(f'row {index} is broken')

  batches = loader.batches(Broken(), batch=1)
  with pytest.raises(ValueError, match='row 0 is broken'):
    next(batches)
  batches.close()


def test_closing_ends_the_thread():
  before = threading.active_count()
  batches = loader.batches(_rows(), batch=2)
  for row in (0, 4, 8):
    batches.set_state({'row': row})
    next(batches)
  batches.close()
  for thread in threading.enumerate():
    if thread.name.startswith('grain-prefetch'):
      thread.join(10)
  assert threading.active_count() <= before


@pytest.mark.parametrize('state', [{}, {'row': -1}, {'row': '3'}, None, 3])
def test_a_state_of_something_else(state):
  with pytest.raises(ValueError, match='data state'):
    loader.batches(_rows(), batch=2).set_state(state)


@pytest.mark.parametrize('batch', [1, 3, 4, 100])
def test_an_epoch_is_padded_to_one_shape(batch):
  rows = _rows()
  size = len(rows)
  batches = list(loader.epoch(rows, batch))
  assert {b.tokens_BL.shape for b in batches} == {(batch, 16)}
  assert len(batches) == -(-size // batch)
  for name in 'tokens', 'weight':
    found = np.concatenate([getattr(b, f'{name}_BL') for b in batches])
    wanted = [getattr(row, name) for row in rows]
    np.testing.assert_array_equal(found[:size], wanted)
  assert not found[size:].any()
  assert (batches[-1].source_BL[size % batch or batch :] == -1).all()
