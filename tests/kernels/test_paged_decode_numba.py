"""Paged decode by numba: bits of rows, sizes, and frames that it refuses."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.kernels import choice
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.paged_decode import api
from kaiju_jax.kernels.paged_decode import plan as plan_lib
from kaiju_jax.kernels.visibility_attention import operands
from tests.device import checks
from tests.device import decode as shared
from tests.kernels import frames


@pytest.fixture(scope='module', name='kernel')
def _kernel():
  pytest.importorskip('numba', reason='needs the extra cpu')
  found = dispatch.numba_cpu(api.__package__)
  return found or pytest.skip('needs an x86 CPU with AVX2')


queries = pytest.mark.parametrize('q_codes', [True, False])


def draw(name='several lengths', heads=3, channels=64, slots=16, q_codes=True):
  """Returns codes and scales of a case with other sizes."""
  case = shared.CASES[name]
  table_BN = case.table_BN[:, 1 :: slots // shared.SLOTS]
  case = case._replace(heads=heads, table_BN=table_BN)
  floats = [x[..., :channels] for x in shared.operands(case)]
  (q, k, v), scales, _ = checks.draw_codes(floats, q_codes, 'token')
  arrays = {'q_BLHK': q, 'k_PSK': k, 'v_PSK': v, 'table_BN': table_BN}
  return arrays | scales | case.visibility._asdict()


def decode(arrays, implementation='numba_cpu', window=None):
  """Returns out and lse of a compiled call."""
  return jax.jit(
    lambda arrays: api.decode(
      **arrays,
      window=window,
      scale=0.1,
      dtype=jnp.float32,
      implementation=implementation,
    )
  )(arrays)


# Whole tiles and parts: rows by threes, channels by 64, queries, pages.
SIZES = (
  ('several lengths', 3, 64, 16),
  ('absent pages', 1, 128, 64),
  ('several queries, window', 7, 192, 32),
)


@pytest.mark.versions
@queries
@pytest.mark.parametrize('sizes', SIZES, ids=str)
def test_it_is_the_definition(kernel, sizes, q_codes):
  arrays, window = draw(*sizes, q_codes), 9 if 'window' in sizes[0] else None
  results = decode(arrays, window=window)
  for a, e in zip(results, decode(arrays, 'reference', window)):
    np.testing.assert_allclose(a, e, atol=3e-6 * np.abs(e).max())


def _rows(arrays, rows):
  pools = 'k_PSK', 'v_PSK', 'k_scale', 'v_scale'
  return {
    name: x if name in pools or x is None else x[rows]
    for name, x in arrays.items()
  }


@queries
def test_a_row_has_its_bits_in_any_batch_and_in_any_part(
  kernel, monkeypatch, q_codes
):
  arrays = draw(q_codes=q_codes)
  whole = decode(arrays)
  for rows in [2], [2, 0]:
    for a, e in zip(decode(_rows(arrays, rows)), whole):
      np.testing.assert_array_equal(a, e[np.array(rows)])
  # A query has its bits beside others, too, in tiles of any rows.
  for heads in 1, 2:
    alone = {
      name: x[:, :, :heads] if name.startswith('q') and x is not None else x
      for name, x in arrays.items()
    }
    for a, e in zip(decode(alone), whole):
      np.testing.assert_array_equal(a, e[:, :, :heads])
  monkeypatch.setattr(kernel, '_SPLIT', 1)
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: range(2))
  text = str(
    jax.make_jaxpr(lambda x: api.decode(**x, window=None, scale=1))(arrays)
  )
  assert text.count('ffi_call') == 2
  for a, e in zip(decode(arrays), whole):
    np.testing.assert_array_equal(a, e)


def _call(kernel):
  """Returns structs of a call by name, its arrays, and the frame."""
  memory, arrays = frames.Memory(), draw()
  ranges = operands.Ranges(*(arrays[name] for name in operands.Ranges._fields))
  table_BN = arrays['table_BN']
  plan = plan_lib.make(table_BN, ranges, pages=shared.POOL, window=None)
  arrays |= {name: np.array(x) for name, x in plan._asdict().items()}
  arrays |= {
    'q_BRK': arrays['q_BLHK'][:, 0],
    'factor_BR': arrays['q_scale_BLH'][:, 0],
    'k_scale_PS': arrays['k_scale'],
    'v_scale_PS': arrays['v_scale'],
    'begin_': np.array(2, np.int32),
    'back_': np.array(2**31 - 1, np.int32),
    'number_': np.array(0, np.int32),
    'out_CRK': np.zeros((1, 3, 64), np.float32),
    'lse_CR': np.zeros((1, 3), np.float32),
  }
  structs = {name: memory.buffer(arrays[name]) for name in kernel._NAMES}
  frame = memory.frame(0, [*structs.values()][:-2], [*structs.values()][-2:])
  return memory, structs, arrays, frame


def test_a_loop_reads_one_of_several_pools_in_place(kernel):
  names = 'k_PSK', 'v_PSK', 'k_scale', 'v_scale'
  given = draw()
  pools = [{name: jnp.asarray(given[name]) for name in names}]
  pools += [jax.tree.map(lambda x: x[::-1], pools[0])]

  def body(number, _):
    chosen = jax.tree.map(lambda *x: choice.Choice(number, x), *pools)
    return 1 - number, decode({**given, **chosen})

  _, found = jax.lax.scan(body, jnp.int32(1), length=3)
  for place, number in enumerate((1, 0, 1)):
    for a, e in zip(found, decode({**given, **pools[number]})):
      np.testing.assert_array_equal(a[place], e)


def test_a_frame_is_read_as_xla_makes_it(kernel):
  memory, _, arrays, frame = _call(kernel)
  assert frames.handle(kernel, frame) == 0 and not memory.errors
  given = draw()
  given['q_scale_BLH'] = given['q_scale_BLH'] / np.float32(0.1)
  out_BLHK, lse_BLH = decode(given)
  np.testing.assert_allclose(arrays['out_CRK'], out_BLHK[2], rtol=1e-5)
  np.testing.assert_allclose(arrays['lse_CR'], lse_BLH[2], rtol=1e-5)


def test_other_dtypes_ranks_and_sizes_are_refused(kernel):
  memory, structs, arrays, frame = _call(kernel)
  for name, address in structs.items():
    rank, dims = arrays[name].ndim, frames.get(address, 5)
    changes = [(dims, axis, 7) for axis in range(rank)]
    changes += [(address, 2, 5), (address, 4, rank + 1)]
    for struct, place, value in changes:
      before = frames.get(struct, place)
      frames.put(struct, place, value)
      assert frames.handle(kernel, frame) == 77, (name, place)
      frames.put(struct, place, before)
  assert memory.errors and not arrays['out_CRK'].any()
  assert frames.handle(kernel, frame) == 0


@pytest.mark.parametrize(
  ('name', 'place', 'value'),
  (
    ('page_BN', (2, 0), 40),
    ('page_BN', (2, 1), -1),
    ('logical_BN', (2, 0), 4),
    ('logical_BN', (2, 0), -1),
    ('count_B', 2, 5),
    ('begin_', (), -1),
    ('begin_', (), 3),
    ('number_', (), -1),
    ('number_', (), 1),
  ),
)
def test_a_plan_of_what_is_not_there_is_refused(kernel, name, place, value):
  _memory, _, arrays, frame = _call(kernel)
  arrays[name][place] = value
  assert frames.handle(kernel, frame) == 77
