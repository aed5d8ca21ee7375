"""Without MQA: bytes of keys and values, GPUs that hold them, and the bill.

Source 003 says 32 times the bytes, 40 GPUs more and twice the cost of a token.
"""

import dataclasses

import pytest

from kaiju_jax.costs import footprint
from kaiju_jax.experiments.studies import economics as runs_economics
from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import ceilings
from kaiju_jax.fleet import claims
from kaiju_jax.fleet import economics
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import presets
from kaiju_jax.tpu_gpu_configs.chips import h100

SESSIONS, HBM = 50_000, 80e9


def holders(config):
  return SESSIONS * footprint.kv_caches(config, 4_096)[0].bytes / HBM


def cost_per_message(config):
  rates = book_lib.rates(config, h100.CHIP)
  given = dataclasses.replace(
    book_lib.inputs(runs_economics.load('ours')),
    **{name: cell.value for name, cell in rates.items()},
  )
  return economics.cost(given).gpu


def test_bytes_grow_by_the_number_of_heads():
  whole = tuple(layers_lib.Layer(None, index) for index in range(60))
  sizes = [
    layers_lib.kv_bytes(whole, 4_096, 128, heads, 2, 0) for heads in (1, 32)
  ]
  assert sizes[1] / sizes[0] == 32
  # The source's 40 GPUs hold one layer; its model has 60.
  assert SESSIONS * sizes[1] / HBM == pytest.approx(2_517, abs=1)
  assert SESSIONS * sizes[0] / HBM == pytest.approx(78.6, abs=0.1)
  said = book_lib.values(runs_economics.load('source'))
  assert claims.kv_bytes(said, 32, 2) == sizes[1]


def test_our_model_without_mqa_and_with_it_again():
  config = presets.preset('13b')
  with_it = holders(config)
  assert with_it == pytest.approx(4.1, abs=0.1)
  config.num_kv_heads = config.num_heads
  assert holders(config) / with_it == pytest.approx(config.num_heads)
  config.num_kv_heads = 1
  assert holders(config) == with_it


def test_the_bill_grows_and_comes_back():
  """Fewer rows fit, and each reads forty times the bytes: 5.8 ×, not 2 ×."""
  config = presets.preset('13b')
  before, rows = cost_per_message(config), rows_of(config)
  config.num_kv_heads = config.num_heads
  assert rows_of(config) < rows / 30
  ratio = cost_per_message(config) / before
  assert ratio == pytest.approx(5.8, abs=0.2)
  config.num_kv_heads = 1
  assert cost_per_message(config) == before


def rows_of(config):
  return ceilings.most_rows(config, h100.CHIP, 10_060)
