"""Source 003's quick checks and recap quiz, answered by code."""

import dataclasses

import pytest

from kaiju_jax.experiments.studies import economics as runs_economics
from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import ceilings
from kaiju_jax.fleet import claims
from kaiju_jax.fleet import economics
from kaiju_jax.fleet import incident
from kaiju_jax.fleet import replay
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import presets
from kaiju_jax.tpu_gpu_configs.chips import h100

SOURCE = runs_economics.load('source')
SAID = book_lib.values(SOURCE)


def kv_bytes(heads, bytes_per_value):
  layer = (layers_lib.Layer(None, 0),)
  return layers_lib.kv_bytes(layer, 4_096, 128, heads, bytes_per_value, 0)


def test_quick_check_a_looser_p99_gives_larger_batches():
  """And recap 1: larger batches draw more tokens per second."""
  config = presets.preset('13b')
  rates = [
    ceilings.decode_rate(config, h100.CHIP, 10_060, rows) for rows in (128, 384)
  ]
  assert 1 < rates[1] / rates[0] < 3
  # Nor is the queue's part three times: it is so for a server of its own alone.
  assert claims.slo_gain(SAID, 1) > 3 > claims.slo_gain(SAID, 8) > 1


def test_quick_check_round_robin_prefills_all():
  """And recap 5: from 20,000 to 50,000 per second, 2.5 times."""
  before = economics.source_calculator().effective_rate
  after = economics.source_calculator(hit_rate=0.0).effective_rate
  assert (before, after) == (pytest.approx(20_000), 50_000)
  assert after / before == pytest.approx(2.5)


def test_quick_check_extra_compute_of_fifteen_minutes():
  extra = SAID.hourly * (2.5 - 1) * 15 / 60
  assert extra == SAID.row1_net == 2_250
  # That is the answer which is asked for; a fixed fleet burns nothing extra.
  (net,) = [
    one for one in claims.findings(SOURCE) if one.claim.cell == 'row1_net'
  ]
  assert net.recomputed == 0 and net.flagged


def test_recap_2_a_session_that_grows():
  assert economics.prefix_hit_rate(6_000, 2_000) == 0.75
  assert economics.prefix_hit_rate(6_000, 10_000) == 0.375
  # The engine's own tree says the same, where nothing but prefixes is kept.
  sizes = replay.sizes_of(presets.preset('13b'))
  rates = replay.prefix_hit_rates(sizes, 6_144, (2_048, 10_240))
  assert rates == pytest.approx([0.75, 0.375], abs=0.001)


def test_recap_3_gpus_for_mha():
  said = SAID.concurrent * kv_bytes(32, 2) / SAID.hbm
  assert said == pytest.approx(40, rel=0.05)  # The answer, for one layer.
  assert claims.holders(SAID, 32, 2) == pytest.approx(60 * said, rel=0.01)


def test_recap_4_int8_halves_the_cache():
  assert kv_bytes(1, 1) * 2 == kv_bytes(1, 2)
  assert kv_bytes(32, 2) == 64 * kv_bytes(1, 1) == SAID.kv_mha


def test_recap_6_refusals_cost_users_not_gpus():
  refused = dataclasses.replace(
    book_lib.inputs(SOURCE), message_rate=SAID.message_rate * 0.9
  )
  usual = economics.cost(book_lib.inputs(SOURCE))
  assert economics.cost(refused).gpus < usual.gpus
  lost = incident.source_cost(SOURCE, 12)['classifier']
  assert lost == 500 * 10 * 12 == SAID.row2_total


def test_recap_7_conversion_needs_training_but_not_all_of_it():
  (found,) = [
    one
    for one in claims.findings(SOURCE)
    if one.claim.cell == 'conversion_share'
  ]
  assert 0 < found.recomputed < 0.1 < found.said
