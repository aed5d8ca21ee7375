"""What a search found is found again, on that device and at that shape."""

import collections
import datetime
import importlib
import json
import math
import random
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax.kernels import timing
from kaiju_jax.kernels import tuned

_FOUND = tuned.SearchResult({'rows': 128, 'keys': 64}, 1e-3, {})


def test_without_a_measurement_there_is_no_winner(tmp_path):
  assert tuned.winner(tmp_path, 'TPU v5', 'length=1') is None


def test_a_winner_is_of_its_device_and_shape(tmp_path):
  shape = tuned.key(length=32, heads=4)
  assert shape == tuned.key(heads=4, length=32) == 'heads=4 length=32'
  tuned.write(tmp_path, 'TPU v5', shape, _FOUND)
  assert tuned.winner(tmp_path, 'TPU v5', shape) == {'rows': 128, 'keys': 64}
  assert tuned.winner(tmp_path, 'TPU v6 lite', shape) is None
  assert tuned.winner(tmp_path, 'TPU v5', tuned.key(length=33)) is None


class _Tiles(NamedTuple):
  rows: int
  keys: int


def test_the_newest_trial_of_a_kernel_goes_before_its_winner(tmp_path):
  def find(kind, sizes=_Tiles):
    return tuned.find(str(tmp_path / 'blocks.py'), sizes, 'a', kind)

  other = collections.namedtuple('Other', 'rows keys')
  assert find('dq') is None
  tuned.write(tmp_path, tuned.device_kind(), 'a', _FOUND)
  with tuned.trying(_Tiles(1, 1)), tuned.trying(_Tiles(2, 2), 'dq', 'dkv'):
    assert [find(kind) for kind in ('dq', 'forward')] == [(2, 2), (1, 1)]
    assert find('dq', other) == (128, 64)
    with tuned.trying(_Tiles(3, 3)):
      assert find('dq') == (3, 3)
  # Each is traced anew.
  read = jax.jit(lambda: jnp.int32(find('dq')))
  kinds = ('dq',), (), ('dkv',)
  bound = [tuned.bind(read, _Tiles(1, 1), *each) for each in kinds]
  for _ in range(2):
    rows = [int(call()[0]) for call in (*bound, read)]
    assert rows == [1, 1, 128, 128]


def test_a_later_winner_replaces_only_its_own(tmp_path):
  tuned.write(tmp_path, 'TPU v5', 'a', _FOUND)
  tuned.write(tmp_path, 'TPU v5', 'b', _FOUND)
  assert tuned.winner(tmp_path, 'TPU v5', 'b') == _FOUND.best
  tuned.write(
    tmp_path, 'TPU v5', 'b', tuned.SearchResult({'rows': 8}, 1e-4, {})
  )
  assert tuned.winner(tmp_path, 'TPU v5', 'a') == _FOUND.best
  assert tuned.winner(tmp_path, 'TPU v5', 'b') == {'rows': 8}


def test_the_file_says_how_it_came_about(tmp_path):
  tuned.write(tmp_path, 'TPU v5', 'a', _FOUND)
  entry = json.loads((tmp_path / 'tuned.json').read_text())['TPU v5']['a']
  datetime.date.fromisoformat(entry.pop('date'))
  assert entry == {
    'blocks': {'rows': 128, 'keys': 64},
    'seconds': 1e-3,
    'jax': jax.__version__,
  }


def test_a_broken_file_is_named(tmp_path):
  (tmp_path / 'tuned.json').write_text('{')
  with pytest.raises(ValueError, match=r'tuned\.json is not JSON'):
    tuned.winner(tmp_path, 'TPU v5', 'a')


def test_the_device_is_the_one_that_is_compiled_for():
  assert tuned.device_kind() == jax.devices()[0].device_kind
  kind = jax.sharding.AbstractDevice('TPU v9', 1, 'tpu')
  mesh = jax.sharding.AbstractMesh((), (), abstract_device=kind)
  with jax.sharding.use_abstract_mesh(mesh):
    assert tuned.device_kind() == 'TPU v9'


def test_search_takes_the_fastest_that_compiles(monkeypatch):
  seconds = {64: 2.0, 128: 1.0, 256: 3.0}
  candidates = [{'rows': rows} for rows in (512, 64, 128, 256)]

  def run(blocks):
    if blocks['rows'] == 512:
      raise NotImplementedError('too many registers')
    return lambda: jnp.asarray([1.0, math.nan])

  def spreads(runs, repeats, calls):
    assert list(runs) == [str({'rows': rows}) for rows in seconds]
    # A lucky call is no sign: the median decides.
    rounds = {x: [0.1 if x == 64 else s, s, s] for x, s in seconds.items()}
    return {str({'rows': x}): timing.spread(rounds[x]) for x in rounds}

  monkeypatch.setattr(timing, 'spreads', spreads)
  monkeypatch.setattr(random.Random, 'shuffle', lambda self, rest: None)
  refused = {0: 'too many registers'}
  best = timing.Spread(1.0, 1.0, 1.0, 3)
  found = tuned.search(candidates, run)
  assert found == ({'rows': 128}, 1.0, refused, None, 0, best)


@pytest.mark.parametrize('wrong', [1.2, math.nan, math.inf])
def test_a_candidate_that_computes_something_else_is_refused(wrong):
  # The first that compiles is today's choice, which numerics have checked.
  results = {8: (3.0, 1.0), 16: (3.1, 1.0), 32: (3.0, wrong)}

  def run(blocks):
    return lambda: jnp.asarray(results[blocks['rows']])

  found = tuned.search([{'rows': rows} for rows in results], run, repeats=1)
  assert list(found.refused) == [2] and 'results differ' in found.refused[2]


def test_a_write_that_is_cut_off_leaves_the_old_file(tmp_path, monkeypatch):
  found = tuned.SearchResult({'rows': 8}, 1.0, {})
  tuned.write(tmp_path, 'X', 'a', found)
  monkeypatch.setattr(tuned.os, 'replace', lambda *_: None)
  tuned.write(tmp_path, 'X', 'a', found._replace(best={'rows': 16}))
  assert tuned.winner(tmp_path, 'X', 'a') == {'rows': 8}


def test_a_search_without_an_outcome_says_why():
  def run(blocks):
    raise ValueError('odd rows')

  with pytest.raises(ValueError, match=r"compiles\. {'rows': 3}: odd rows"):
    tuned.search([{'rows': 3}], run)


def test_a_search_out_of_time_keeps_todays_choice():
  candidates = [{'rows': rows} for rows in (8, 16, 32)]

  def run(blocks):
    return lambda: jnp.asarray(blocks['rows'] > 0)

  with timing.bound_time(0):
    found = tuned.search(candidates, run, repeats=1)
  assert found.best == {'rows': 8} and found.untried == 2
  assert found.first.median == found.seconds > 0
  assert found.spread == found.first and found.spread.rounds == 1
  assert tuned.search(candidates, run, repeats=1).untried == 0


@pytest.mark.parametrize(
  'kernel', ['visibility_attention', 'paged_decode', 'int8_matmul', 'squinch']
)
def test_a_cpu_has_nothing_to_search(kernel):
  name = f'kaiju_jax.kernels.{kernel}.autotune'
  assert importlib.import_module(name).jobs() == {}
