"""A message's cost, by hand and by its parts; ceilings; the tornado."""

import dataclasses
import math

import pytest

from kaiju_jax.experiments.studies import economics as runs_economics
from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import ceilings
from kaiju_jax.fleet import economics
from kaiju_jax.fleet import queueing
from kaiju_jax.model import presets
from kaiju_jax.tpu_gpu_configs.chips import a100
from kaiju_jax.tpu_gpu_configs.chips import h100

BOOK = book_lib.load('ours')
GIVEN = book_lib.inputs(BOOK)
SOURCE = book_lib.inputs(book_lib.load('source'))
MODEL = presets.preset('13b')


def test_a_cost_by_hand():
  given = economics.Inputs(
    message_rate=10,
    peak_to_mean=2,
    prefix=600,
    history=300,
    message=100,
    output=50,
    hit_rate=0.8,
    prefill_rate=1_000,
    decode_rate=100,
    gpu_price=3.6,
    pooled=4,
    slo=2.0,
    fixed=0.0002,
    training=8_640,
    training_days=10,
    user_messages=20,
    subscription=10,
    paid_share=0.1,
  )
  found = economics.cost(given)
  # 200 tokens at 1,000/s, 50 at 100/s.
  assert (found.prefill_s, found.decode_s) == pytest.approx((0.2, 0.5))
  load = queueing.highest_load(4, 0.2, 2.0)
  assert found.gpu == pytest.approx(0.7 / load * 2 * 0.001)
  assert found.gpus == pytest.approx(10 * 0.7 / load * 2)
  assert found.training == pytest.approx(0.001)  # 8,640 $ / 8.64 M messages.
  assert found.total == pytest.approx(found.gpu + 0.0012)
  assert found.bottleneck == 'decode'
  assert given.active_users == 43_200
  assert economics.user_month(given) == pytest.approx(600 * found.total)
  assert economics.margin(given, 0.1) == pytest.approx(1 - 600 * found.total)
  assert economics.margin(given, 0.0) == -math.inf
  assert economics.work_ratio(given, 0.0) == pytest.approx(1.5 / 0.7)


def test_the_sources_calculator_to_its_printed_digits():
  found = economics.source_calculator(SOURCE)
  assert found.effective_rate == pytest.approx(20_000)
  assert found.batch_factor == 1
  assert found.gpus == pytest.approx(3_000)
  assert found.hourly == pytest.approx(6_000)
  assert f'{found.per_request:.5f}' == '0.00003'
  assert found.monthly == pytest.approx(4_380_000)
  tight = economics.source_calculator(dataclasses.replace(SOURCE, slo=0.8))
  assert tight.gpus / found.gpus == pytest.approx(3.1, abs=0.05)
  # Quick check and recap 5: round robin prefills all, 2.5 times as much.
  cold = economics.source_calculator(dataclasses.replace(SOURCE, hit_rate=0.0))
  assert cold.effective_rate == 50_000


def test_a_point_of_hit_rate_is_a_difference_of_two_costs():
  less = dataclasses.replace(GIVEN, hit_rate=GIVEN.hit_rate - 0.01)
  month = GIVEN.message_rate * 86_400 * 30
  assert economics.point_of_hit_rate(GIVEN) == pytest.approx(
    month * (economics.cost(less).total - economics.cost(GIVEN).total)
  )


@pytest.mark.parametrize('heads', [8, 32])
def test_at_the_crossover_both_models_cost_the_same(heads):
  rates = book_lib.rates(runs_economics.llama(heads), h100.CHIP)
  other = dataclasses.replace(
    GIVEN,
    training=GIVEN.training / 1000,
    **{name: cell.value for name, cell in rates.items()},
  )
  users = economics.crossover(GIVEN, other)
  rate = users * GIVEN.user_messages / 86_400
  costs = [
    economics.cost(dataclasses.replace(one, message_rate=rate)).total
    for one in (GIVEN, other)
  ]
  assert costs[0] == pytest.approx(costs[1])
  assert economics.crossover(other, GIVEN) == math.inf


def test_without_hits_all_prompts_are_prefilled():
  cold = dataclasses.replace(GIVEN, hit_rate=0.0)
  assert economics.prefill_seconds(cold) == pytest.approx(
    economics.prefill_seconds(GIVEN, 0.0)
  )
  whole = dataclasses.replace(GIVEN, hit_rate=1.0)
  assert economics.cost(whole).prefill_s == 0
  assert economics.cost(whole).load == 1


def test_the_tornado_is_the_cost_at_each_end():
  bars = book_lib.tornado(BOOK)
  swings = [bar.swing for bar in bars]
  assert swings == sorted(swings, reverse=True)
  ends = {cell for cell, one in BOOK.items() if one.low is not None}
  assert {bar.name for bar in bars} == ends
  (bar,) = [one for one in bars if one.name == 'hit_rate']
  cold = dataclasses.replace(GIVEN, hit_rate=BOOK['hit_rate'].low)
  assert bar.at_low == pytest.approx(1000 * economics.cost(cold).total)
  assert bar.at_high < bar.at_low


@pytest.mark.parametrize('chip', [a100.CHIP, h100.CHIP])
def test_ceilings_keep_to_their_chip(chip):
  paper = ceilings.paper_rate(MODEL, chip)
  assert ceilings.prefill_rate(MODEL, chip, 10_060) < paper
  short = ceilings.prefill_rate(MODEL, chip, 64)
  assert short > ceilings.prefill_rate(MODEL, chip, 10_060)
  rates = [
    ceilings.decode_rate(MODEL, chip, 10_060, rows) for rows in (1, 64, 512)
  ]
  assert rates == sorted(rates)
  # One row is read as fast as memory gives the weights.
  weights = ceilings.weight_bytes(MODEL) / chip.hbm_bandwidth
  assert 0.9 / weights < rates[0] < 1 / weights
  rows = ceilings.most_rows(MODEL, chip, 10_060)
  most = ceilings.decode_rate(MODEL, chip, 10_060, rows)
  assert ceilings.decode_rate(MODEL, chip, 10_060, 10**6) == most
