"""A played model's cache stays within its budget, and its arm is a server's."""

import contextlib
import random

import jax
import ml_dtypes
import pytest

from kaiju_jax.costs import cache_plan
from kaiju_jax.costs import footprint
from kaiju_jax.decoding.device import weights
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.kernels import dispatch
from kaiju_jax.model import paging
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import exchange
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from tests.decoding import toys
from tests.interchange import family_folders
from tests.runs import toys as folders


def loaded_of(**changes) -> load.Loaded:
  config = toys.config(**changes)
  return load.Loaded(toys.drawn(config), config, None, '', 'drawn')


def pages_of(decoder) -> int:
  """Returns the bytes of a decoder's pages."""
  pools = [x[:2] for x in decoder.cache.kinds.values()]
  return sum(x.nbytes for x in jax.tree.leaves(pools))


@pytest.mark.parametrize('seed', range(2))
def test_no_decoder_has_more_than_its_budget(seed):
  rng = random.Random(seed)
  kv = {'quantization': toys.int8()} if seed % 2 else {}
  loaded = loaded_of(
    layout=rng.choice(['L0 L0 G2 L3', 'G0', 'L0 G1']), max_length=2000, **kv
  )
  rows = rng.randint(1, 40)
  whole = pages_of(play.decoder(loaded, None, rows=rows, length=2000))
  assert whole > 2000
  for length in None, 2000, 100:
    for budget in whole * 2, whole, whole - 1, whole // 3, whole // (2 * rows):
      try:
        made = play.decoder(
          loaded, None, rows=rows, length=length, cache=budget
        )
      except ValueError as error:
        assert '--cache=' in str(error)
        one = cache_plan.plan(loaded.config, 2**40, 1, length or 1)
        assert one.size > budget
        continue
      assert pages_of(made) <= budget
      assert made.length == (length or made.length) and made.rows == rows


def test_by_default_the_budget_is_a_part_of_what_is_free(monkeypatch):
  loaded = loaded_of(max_length=2000)
  whole = pages_of(play.decoder(loaded, None, rows=9, length=2000))
  monkeypatch.setattr(
    'kaiju_jax.decoding.device.memory.measure_free', lambda *_: whole
  )
  made = play.decoder(loaded, None, rows=9)
  assert pages_of(made) <= whole // 4


def played_on(tensor):
  """Returns the decoder of two rows on so many devices, and its budget."""
  loaded = loaded_of(layout='L0 G1', num_heads=4, vocab_size=62)
  budget = cache_plan.plan(loaded.config, 2**40, 2, 20).size
  played = play.Player(length=20, cache=budget, tensor=tensor)
  return played.decoder(loaded, None, 2), budget


def test_weights_of_several_devices_are_placed_before_the_cache(monkeypatch):
  config = loaded_of(layout='L0 G1', num_heads=4, vocab_size=62).config
  waiting = []
  monkeypatch.setattr(
    'kaiju_jax.decoding.device.memory.measure_free',
    lambda devices, bytes: waiting.append((devices, bytes)) or 2**30,
  )
  for tensor in 1, 2:
    play.plan_cache(config, None, 1, 20, 0, tensor)
  each = footprint.weight_bytes(config, 2)
  assert waiting == [(1, 0), (2, 2 * each)]


def test_pages_have_slots_for_all_devices(monkeypatch):
  config = toys.config(num_heads=6, vocab_size=63, d_ff=66)
  assert play.page_of(config, 1) == play.page_of(config, 4) == paging.PAGE == 64
  assert play.page_of(config, 3) == 192
  loaded = load.Loaded(toys.drawn(config), config, None, '', 'drawn')
  made = play.Player(length=20, cache=2**20, tensor=3).decoder(loaded, None, 1)
  assert made.network.pools['global'].slots == 64
  assert pages_of(made) <= 2**20
  monkeypatch.setattr(dispatch, 'platform', lambda: 'tpu')
  of_tpu = {tensor: play.page_of(config, tensor) for tensor in (1, 2, 4, 8)}
  assert of_tpu == {1: 64, 2: 64, 4: 128, 8: 256}
  two = toys.config(num_heads=8, num_kv_heads=2)
  assert [play.page_of(two, tensor) for tensor in (2, 4, 8)] == [64, 64, 128]


def test_devices_share_the_budget_of_a_played_model():
  made, budget = played_on(2)
  assert pages_of(made) <= budget
  pool = made.cache.kinds['global'].k[0]
  assert len(pool.addressable_shards) == 2
  assert pool.addressable_shards[0].data.nbytes * 2 == pool.nbytes
  with pytest.raises(ValueError, match=r'tensor=9: must be 1…8'):
    played_on(9)


@pytest.mark.slow
def test_several_devices_draw_what_one_draws():
  asked = request_lib.Request([*range(9)], 5, sampling.Sampling(temperature=0))
  found = []
  for tensor in 1, 2:
    generator = generator_lib.Generator(played_on(tensor)[0], None)
    (result,) = generator.generate([asked])
    found.append([*result.tokens])
  assert found[0] == found[1] and len(found[0]) == 5


@pytest.mark.slow
def test_a_tight_cache_draws_what_a_wide_one_draws():
  loaded = loaded_of()
  rng = random.Random(1)
  requests = [
    request_lib.Request(
      [rng.randrange(61) for _ in range(rng.randint(1, 40))],
      12,
      sampling.Sampling(temperature=0),
    )
    for _ in range(9)
  ]
  one = cache_plan.plan(loaded.config, 2**40, 1, 56).size
  found = []
  for cache in one, None:
    decoder = play.decoder(loaded, None, rows=4, length=56, cache=cache)
    generator = generator_lib.Generator(decoder, None, chunk=16)
    results = generator.generate(requests)
    assert all(x.error is None for x in results)
    found.append([[*x.tokens] for x in results])
  assert found[0] == found[1]


def test_what_is_longer_than_the_positions_is_named_so():
  with pytest.raises(ValueError, match=r'length=65: .*max_length=64'):
    play.decoder(loaded_of(), None, rows=1, length=65)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  root = tmp_path_factory.mktemp('bfloat16')
  fields = family_folders.fields_of('llama') | {'vocab_size': 420}
  tensors = {
    name: x.astype(ml_dtypes.bfloat16)
    for name, x in family_folders.tensors_of(fields).items()
  }
  found = folders.write_folder(root / 'in', tensors, torch_dtype='bfloat16')
  (found / 'generation_config.json').write_text('{}')
  exchange.read(found, root / 'floats')
  exchange.read(found, root / 'codes', codes=True)
  return root


@pytest.mark.parametrize('tensor', [1, 2])
def test_a_model_for_several_devices_is_read_into_host_memory(
  folder, monkeypatch, tensor
):
  entered = []

  @contextlib.contextmanager
  def on_host():
    entered.append('in')
    yield
    entered.append('out')

  read = load.from_anywhere
  monkeypatch.setattr(weights, 'on_host', on_host)
  monkeypatch.setattr(
    load,
    'from_anywhere',
    lambda *a, **k: entered.append('read') or read(*a, **k),
  )
  play.Player(tensor=tensor).load(folder / 'codes')
  assert entered == (['read'] if tensor == 1 else ['in', 'read', 'out'])


@pytest.mark.parametrize('name', ['in', 'floats', 'codes'])
def test_on_a_cpu_a_folder_is_computed_in_float32(folder, name):
  for int8 in 'all', 'weights', *(('none',) if name != 'codes' else ()):
    for dtype, expected in ('', 'float32'), ('bfloat16', 'bfloat16'):
      found = play.Arm(int8=int8, dtype=dtype).load(str(folder / name))
      assert found.config.dtype == expected
      if name != 'floats':
        arm = quantization_config.for_serving(int8)
        assert found.config.quantization == arm
