"""Who may write to a row, how much, and what a failed call leaves."""

import signal

import jax
import numpy as np
import pytest

from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from tests.decoding import toys

pytestmark = pytest.mark.versions


def made():
  """All layers are local, so that a row's pages alone would take any length."""
  config = toys.config(layout='L0', window=6, d_ff=8, d_model=8, num_heads=1)
  return decoder_lib.Decoder(
    toys.drawn(config), config, rows=3, length=32, page=4
  )


@pytest.fixture(scope='module')
def decoder():
  return made()


def cached(decoder):
  return jax.tree.map(np.asarray, decoder.cache)


def test_a_row_takes_what_it_was_opened_for_and_no_more(decoder):
  row = decoder.open(9)
  decoder.extend_text([row], np.ones((1, 4), np.int32))
  decoder.extend_text([row], np.ones((1, 4), np.int32))
  assert (decoder.length_of(row), decoder.room_of(row)) == (8, 1)
  before = cached(decoder)
  with pytest.raises(ValueError, match=r'row 0 holds 8 .* gets 4: .* for 9'):
    decoder.extend_text([row], np.ones((1, 4), np.int32))
  with pytest.raises(ValueError, match=r'row 0 holds 8 .* gets 2: .* for 9'):
    decoder.run(decoder._text, appends={row: 2})
  jax.tree.map(np.testing.assert_array_equal, cached(decoder), before)
  decoder.extend_text([row], np.ones((1, 4), np.int32), [1])
  assert decoder.room_of(row) == 0
  decoder.close(row)
  # What takes the row next has a room of its own.
  assert decoder.open() == row
  assert decoder.room_of(row) == 32
  decoder.close(row)


@pytest.mark.parametrize('length', [-5, 0, 33, 10**6])
def test_a_length_that_no_row_can_have_is_refused(decoder, length):
  with pytest.raises(ValueError, match=f'length={length}: .* holds 1…32'):
    decoder.open(length)
  assert not decoder.account.open_rows


@pytest.mark.parametrize('length', [1.5, '3', True])
def test_a_length_that_is_no_integer_is_refused(decoder, length):
  with pytest.raises(TypeError, match=f'length={length!r}: must be an integer'):
    decoder.open(length)
  with pytest.raises(TypeError, match=f'extra={length!r}: must be an integer'):
    decoder.open(3, length)
  assert not decoder.account.open_rows


def test_a_closed_row_keeps_neither_pages_nor_text(decoder):
  first, second = decoder.open(), decoder.open()
  decoder.extend_text([first, second], np.ones((2, 4), np.int32))
  decoder.close(second)
  kind = decoder.cache.kinds['local']
  assert (kind.table_RN[second] == -1).all()
  assert (kind.start_RM[second] == kind.limit_RM[second]).all()
  assert decoder.cache.length_R[second] == decoder.length_of(second) == 0
  assert kind.table_RN[first, 0] >= 0
  decoder.close(first)


def test_the_cache_is_the_decoders_to_write(decoder):
  with pytest.raises(AttributeError):
    decoder.cache = decoder.cache


def test_an_interrupted_call_leaves_the_cache_of_after_it(decoder):
  row = decoder.open()

  def interrupted(params, cache, *arguments):
    result = decoder._text(params, cache, *arguments)
    signal.raise_signal(signal.SIGINT)
    return result

  before = cached(decoder)
  text = np.array([row]), np.ones((1, 4), np.int32), np.array([4])
  with pytest.raises(KeyboardInterrupt):
    decoder.run(interrupted, *text, appends={row: 4})
  assert decoder.length_of(row) == 4
  assert decoder.cache.length_R[row] == 4
  # And one that was interrupted before it began is as if it had not been.
  with pytest.raises(KeyboardInterrupt):
    decoder.run(_interrupt, *text, appends={row: 4})
  assert decoder.length_of(row) == 4
  decoder.close(row)
  # Only keys and values remain, which no row sees.
  for name, kind in cached(decoder).kinds.items():
    former = before.kinds[name]
    np.testing.assert_array_equal(kind.limit_RM, former.limit_RM)


def _interrupt(*_):
  raise KeyboardInterrupt


def test_a_call_that_fails_without_the_cache_turns_no_ring(decoder):
  account = decoder.account

  def held(row):
    tables = jax.tree.map(np.array, account.rings())
    free = {kind: account.pages.free(kind) for kind in account.pages.kinds}
    return tables, account.pages_of(row), free, decoder.length_of(row)

  def failing(*_):
    raise RuntimeError('no memory')

  rows = decoder.open(), decoder.open()
  ones = np.ones((2, 4), np.int32)
  for failed_after in range(6):
    for _ in range(2):
      before = [held(row) for row in rows]
      with pytest.raises(RuntimeError, match='no memory'):
        decoder.run(failing, appends=dict.fromkeys(rows, 4 + failed_after))
      jax.tree.map(
        np.testing.assert_array_equal, [held(row) for row in rows], before
      )
    decoder.extend_text(rows, ones)
  for row in rows:
    assert decoder.length_of(row) == decoder.cache.length_R[row] == 24
    decoder.close(row)


def test_a_call_that_fails_with_the_cache_closes_the_decoder():
  decoder = made()
  row = decoder.open()

  def failing(params, cache):
    jax.jit(lambda cache: cache, donate_argnums=0)(cache)
    raise RuntimeError('out of memory')

  with pytest.raises(RuntimeError, match='out of memory'):
    decoder.run(failing)
  for call in (
    lambda: decoder.extend_text([row], np.ones((1, 4), np.int32)),
    lambda: decoder.cache,
    decoder.open,
  ):
    with pytest.raises(decoder_lib.Closed, match='make another Decoder'):
      call()
  # A `finally` that closes its row does not hide the first error.
  decoder.close(row)
  assert not decoder.account.open_rows


def test_a_row_is_free_where_opening_it_failed(decoder, monkeypatch):
  before = decoder.account.open_rows
  with monkeypatch.context() as patch:
    patch.setattr(decoder, '_give_pages', _interrupt)
    with pytest.raises(KeyboardInterrupt):
      decoder.open()
  assert decoder.account.open_rows == before


def test_bytes_are_those_of_the_cache(decoder):
  assert decoder.cache_bytes == cache_lib.bytes_of(decoder.cache)


def test_rotary_tables_are_arguments_cut_to_the_length():
  """A program holds no constant of a table's size."""
  config = toys.config(layout='L0 G1', window=6, max_length=131_072)
  decoder = decoder_lib.Decoder(
    toys.drawn(config), config, rows=1, length=40, page=4
  )
  rings = decoder.account.rings()
  one = np.zeros(1, np.int32)
  program = decoder._text.lower(
    decoder.params, decoder.cache, rings, one, one[None], one
  ).as_text()
  assert 'tensor<40x8xf32>' in program
  assert '131072x' not in program and len(program) < 10**6


@pytest.mark.skipif(jax.default_backend() != 'cpu', reason="a CPU's compiler")
def test_a_maximum_is_one_operation(decoder):
  largest = decoder.jit(lambda x_BD: abs(x_BD).max(axis=-1))
  text = largest.lower(np.ones((2, 576), np.float32)).compile().as_text()
  assert 'reduce(' in text and 'reduce-window' not in text
