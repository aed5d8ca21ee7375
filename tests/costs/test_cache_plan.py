"""A cache keeps to its budget, and two long texts fit into it."""

import contextlib
import dataclasses

import pytest

from kaiju_jax.costs import cache_plan
from kaiju_jax.kernels.paged_decode import blocks
from kaiju_jax.model import config as model_config
from kaiju_jax.model import paging
from kaiju_jax.quantization import config as quantization_config

GIB = 2**30
QWEN3 = model_config.ModelConfig(
  vocab_size=151_936,
  d_model=1024,
  num_layers=28,
  num_heads=16,
  num_kv_heads=8,
  head_dim=128,
  max_length=40_960,
  period=1,
  local_share=1,
  global_share=1,
  quantization=quantization_config.for_serving(),
)
WINDOWS = dataclasses.replace(
  QWEN3, layout=' '.join([*(f'L{i}' for i in range(5)), 'G5']), window=512
)


def pools_of(config, plan, extra=0, page=paging.PAGE):
  """The pools of a decoder of this plan with one row."""
  return paging.pools(
    config.layers(),
    1,
    plan.length,
    extra=extra,
    page=page,
    pages=plan.pages,
    heads=config.num_kv_heads,
  )


def size_of(config, plan):
  return paging.bytes_of(config, pools_of(config, plan), 1)


@pytest.mark.parametrize('config', [QWEN3, WINDOWS], ids=['global', 'windows'])
@pytest.mark.parametrize('budget', [20 * 2**20, GIB, 6 * GIB, 100 * GIB])
def test_pages_fill_a_budget_and_no_more(config, budget):
  plan = cache_plan.plan(config, budget, texts=4000)
  assert plan.size <= budget
  one = cache_plan.plan(config, 10**15, 1, plan.typical).size
  assert budget - plan.size < one
  tables = size_of(config, plan) - plan.size
  assert 0 <= tables < 0.01 * budget
  assert plan.texts >= 2 and plan.length <= cache_plan.LONGEST
  if plan.length < cache_plan.LONGEST:
    # One page more, and two texts would no longer fit.
    whole = cache_plan.plan(config, 10**15, 1, plan.length + paging.PAGE).size
    assert 2 * whole > budget
  # Texts of any kind of layer: none is short of pages before the others.
  if config is WINDOWS and plan.length > 2 * cache_plan.TYPICAL:
    assert plan.texts * 9 <= plan.pages['local'] <= plan.texts * 9 + 9


def test_a_small_model_has_room_for_its_texts_and_no_more():
  config = model_config.ModelConfig()
  plan = cache_plan.plan(config, GIB, texts=40)
  assert plan.length == config.max_length
  pools = paging.pools(config.layers(), 40, config.max_length)
  assert plan.pages == {kind: pool.pages for kind, pool in pools.items()}
  assert (plan.texts, plan.typical) == (40, cache_plan.TYPICAL)


@pytest.mark.parametrize('config', [QWEN3, WINDOWS], ids=['global', 'windows'])
def test_slots_beyond_a_text_are_of_the_budget(config):
  """Those of a beam search, in every text."""
  least = 4 * 2**20
  for budget, page in ((least, paging.PAGE), (GIB, paging.PAGE), (GIB, 16)):
    without, plan = (
      cache_plan.plan(config, budget, 40, extra=extra, page=page)
      for extra in (0, 63)
    )
    pools = pools_of(config, plan, 63, page)
    assert paging.page_bytes(config, pools) == plan.size <= budget
    assert 0 < plan.length <= without.length
    assert plan.texts <= min(
      pools[kind].pages // pool.row_pages
      for kind, pool in paging.pools(
        config.layers(), 1, plan.typical, extra=63, page=page
      ).items()
    )


def test_what_is_printed():
  said = cache_plan.describe(cache_plan.plan(QWEN3, 2 * GIB, texts=40))
  for part in '59,136', '114,688', '1.9 GiB', '16 conv', '2,048', '18,112':
    assert part in said


def test_a_text_that_does_not_fit_is_refused_in_a_line():
  message = r'length=40,960: .*2\.26 GiB, --cache=2 GiB holds 36,288 tokens'
  with pytest.raises(ValueError, match=message):
    cache_plan.plan(QWEN3, 2 * GIB, 40, length=40_960)
  # What a user asks for may take more than half.
  assert cache_plan.plan(QWEN3, 2 * GIB, 40, length=36_288).length == 36_288
  with pytest.raises(ValueError, match=r'--cache=1 KiB holds 0 tokens'):
    cache_plan.plan(QWEN3, 2**10, 40)


@pytest.mark.parametrize('devices', [1, 4, 16])
def test_no_pool_is_beyond_what_a_gpu_s_kernel_addresses(devices):
  size = paging.PAGE * 8 * 128 // devices
  first, last = 2**31 // size, 2**32 // size
  for count in (first - 1, first, last, last + 1):
    pools = paging.pools(
      *(QWEN3.layers(), 1, 64),
      pages={'global': count},
      heads=8,
      devices=devices,
      page=paging.PAGE,
    )
    pool = pools['global']
    shape = blocks.Shape(
      *(1, 16, 128, pool.heads * pool.pages, 1, pool.slots, 1, None)
    )
    is_read = blocks.misfit('pallas_gpu', shape) is None
    most = paging.cap(QWEN3, count, size, 'gpu')
    assert most == (count if is_read else first - 1)
    paging.check_platform(QWEN3, pools, 'cpu')
    with (
      contextlib.nullcontext()
      if is_read
      else pytest.raises(
        ValueError,
        match=f'global pages={count:,}: must be at most {first - 1:,}',
      )
    ):
      paging.check_platform(QWEN3, pools, 'gpu')
  # Room for one and a half times as many.
  budget = int(1.5 * devices * 28 * 2 * 2**31 * 132 / 128)
  sizes = budget, 10**6, 64, 0, paging.PAGE, devices
  plan = cache_plan.plan(QWEN3, *sizes, 'gpu')
  assert plan.pages['global'] == first - 1
  assert cache_plan.plan(QWEN3, *sizes, 'cpu').pages['global'] > first
  floats = dataclasses.replace(QWEN3, quantization=quantization_config.none())
  assert paging.cap(floats, first, size, 'gpu') == first


@pytest.mark.parametrize(
  'text, size',
  [('2GiB', 2 * GIB), ('1.5 GiB', 3 * GIB // 2), ('64KiB', 2**16)],
)
def test_sizes_are_read(text, size):
  assert cache_plan.parse(text) == size


@pytest.mark.parametrize('text', ['2', '2GB', '-2GiB', '0GiB', 'nanGiB', '1e9'])
def test_what_is_no_size_is_refused(text):
  with pytest.raises(ValueError, match=f'--cache={text}: must be a size in'):
    cache_plan.parse(text)
