"""Source 003's decisions removed one by one, and its quiz, answered by code.

It says of its fleet without MQA: 32 times the bytes, 40 GPUs more and twice the
cost of a token. Without affinity: a hit rate of 1/N ≈ 0 %, 2.5 times the load,
and five minutes. Without pinned versions: 60 % falls to nearly 0, for two
minutes with 100,000 users. Without the gate in front: .5 to 1 % of the fleet,
and a refusal after 2,500 instead of 10 ms, which tells testers the verdict.
"""

import dataclasses

import numpy as np
import pytest

from kaiju_jax.costs import footprint
from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import caches
from kaiju_jax.fleet import ceilings
from kaiju_jax.fleet import claims
from kaiju_jax.fleet import economics
from kaiju_jax.fleet import incident
from kaiju_jax.fleet import queueing
from kaiju_jax.fleet import replay
from kaiju_jax.fleet import traffic
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import presets
from kaiju_jax.tpu_gpu_configs.chips import h100

SOURCE = book_lib.load('source')
SAID, GIVEN = book_lib.values(SOURCE), book_lib.inputs(SOURCE)
OURS = book_lib.inputs(book_lib.load('ours'))


def kv_bytes(heads, bytes_per_value, layers=1):
  """Returns a session's bytes of keys and values, 4,096 tokens of 128."""
  whole = tuple(layers_lib.Layer(None, index) for index in range(layers))
  return layers_lib.kv_bytes(whole, 4_096, 128, heads, bytes_per_value, 0)


def test_mqa_divides_the_bytes_by_the_heads():
  """The source's 40 GPUs hold one layer; its model has 60."""
  assert kv_bytes(1, 1) * 2 == kv_bytes(1, 2)
  assert kv_bytes(32, 2) == 64 * kv_bytes(1, 1) == SAID.kv_mha
  one_layer = SAID.concurrent * kv_bytes(32, 2) / SAID.hbm
  assert one_layer == pytest.approx(40, rel=0.05)
  assert claims.kv_bytes(SAID, 32, 2) == kv_bytes(32, 2, layers=60)
  for heads, gpus in ((32, 2_517), (1, 78.6)):
    assert claims.holders(SAID, heads, 2) == pytest.approx(gpus, abs=0.5)


def test_the_bill_without_mqa():
  """Fewer rows fit, and each reads forty times the bytes: 5.8 ×, not 2 ×."""
  config = presets.preset('13b')
  bills = []
  for heads in (1, config.num_heads):
    config.num_kv_heads = heads
    rates = book_lib.rates(config, h100.CHIP)
    rates = {name: cell.value for name, cell in rates.items()}
    bills.append((
      footprint.kv_caches(config, 4_096)[0].bytes,
      ceilings.most_rows(config, h100.CHIP, 10_060),
      economics.cost(dataclasses.replace(OURS, **rates)).gpu,
    ))  # fmt: skip
  (few, most, cheap), (many, rows, dear) = bills
  assert many / few == config.num_heads and rows < most / 30
  assert dear / cheap == pytest.approx(5.8, abs=0.2)


def test_a_looser_p99_gives_larger_batches_but_not_three_times():
  config = presets.preset('13b')
  rates = [
    ceilings.decode_rate(config, h100.CHIP, 10_060, rows) for rows in (128, 384)
  ]
  assert 1 < rates[1] / rates[0] < 3
  # The queue's part is three times for a server of its own alone.
  assert claims.slo_gain(SAID, 1) > 3 > claims.slo_gain(SAID, 8) > 1


@pytest.mark.parametrize(
  'exponent, rate', [(0.8, 0.16), (1.0, 0.50), (1.2, 0.83)]
)
def test_random_routing_still_finds_prefixes(exponent, rate):
  """A shard keeps 3,600 prefixes of 7.6 MiB, whoever sends the request."""
  kept = int(29e9 / (7.6 * 2**20))
  found = queueing.lru_hit_rate(1_000_000, kept, exponent)
  assert found == pytest.approx(rate, abs=0.01)
  assert found > 1 / 100 + 0.1  # 1/N of 100 shards.


def test_without_affinity_the_load_grows_by_less_than_prefill_alone():
  prefill = 1 / (1 - SAID.hit_rate)
  assert prefill == pytest.approx(2.5)
  assert 2.0 < claims.work(SAID, 0.0) < prefill
  # From 98 % it is more than from 60 %, and half the prefixes help.
  worst = economics.work_ratio(OURS, 0.0)
  share = OURS.prefix / OURS.prompt
  random = economics.work_ratio(OURS, SAID.random_hit_rate * share)
  assert worst > random > 5 > prefill


def test_a_full_fleet_breaks_its_slo_in_less_than_a_second():
  """After t seconds a queue holds (load − 1) t seconds of work."""
  lost = incident.lost_load(OURS)
  assert lost > 10 and OURS.slo / (lost - 1) < 1


def test_the_prefix_alone_is_found_as_long_as_a_session_is_short():
  """Recap 2, by the engine's own tree."""
  sizes = replay.sizes_of(presets.preset('13b'))
  rates = replay.prefix_hit_rates(sizes, 6_144, (2_048, 10_240))
  assert rates == pytest.approx([0.75, 0.375], abs=0.001)


def serve(pinned):
  """Returns hit rates of the turn before an edit, of its turn, of the next."""
  rng = np.random.default_rng(0)
  numbers = iter(range(1_000))

  def piece(size):
    tokens = rng.integers(2**15, size=size, dtype=np.int32)
    return traffic.Piece(next(numbers), tokens)

  old, new = piece(192), piece(192)
  histories, answers = ([piece(size) for _ in range(12)] for size in (128, 8))
  sizes = caches.CacheSizes(8, 40, {'local': 400, 'global': 100}, 500)
  cache = caches.Points(sizes, 10**6, local=0.5)
  rates = []
  for turn in range(4):
    prefix = new if turn >= 2 and not pinned else old
    hits = sum(
      cache.serve(
        traffic.Request(
          *(60.0 * turn + user, 0, user, 'turn'),
          *((prefix, histories[user]), answers[user]),
        )
      )
      for user in range(12)
    )
    rates.append(hits / (12 * (192 + 128)))
  return rates[1:]


def test_an_edit_costs_the_histories_once_and_the_prefix_once_a_shard():
  before, edited, after = serve(pinned=False)
  assert before > 0.95 and after > 0.95
  # All but the first user find the new prefix: 11/12 of 192 of 320 tokens.
  assert edited == pytest.approx(11 / 12 * 192 / 320, abs=0.02)
  before, edited, after = serve(pinned=True)
  assert before == edited == after > 0.95


def test_warming_takes_a_prefill_per_shard_not_minutes():
  prefill = SAID.prefix / SAID.h100_prefill_rate
  assert prefill == pytest.approx(0.12, abs=0.01)
  assert SAID.edit_users / SAID.peak_rate == pytest.approx(111, abs=1)


@pytest.mark.parametrize('blocked', [0.005, 0.01])
def test_refused_messages_are_a_hundredth_of_the_fleet(blocked):
  gpus = [
    economics.cost(dataclasses.replace(GIVEN, message_rate=served)).gpus
    for served in (50_000, 50_000 * (1 - blocked))
  ]
  assert gpus[0] / gpus[1] - 1 == pytest.approx(blocked / (1 - blocked))
  # At the rate that 20 B tokens a day give, it is not 500 but 4.5 or 9.
  assert GIVEN.message_rate * GIVEN.peak_to_mean * blocked < 10
  # Recap 6: the users who are refused cost more.
  assert incident.source_cost(SOURCE, 12)['classifier'] == SAID.row2_total


def test_latency_tells_a_refusal_with_the_gate_not_without():
  """The other way round than source 003 has it: the gate's haste tells."""
  rng = np.random.default_rng(0)

  def seconds():  # A median of 800 ms and a p99 of 2.5 s, as the SLO.
    return 800 * np.exp(rng.normal(size=2_000) * np.log(2500 / 800) / 2.326)

  def told_apart(refused):  # AUC: the faster of a pair is the refused one.
    return float((refused[:, None] < answered[None, :]).mean())

  answered, gated = seconds(), rng.uniform(5, 10, 2_000)
  assert told_apart(gated) > 0.99
  assert told_apart(seconds()) == pytest.approx(0.5, abs=0.03)
  # A refusal that is held as long as an answer takes costs no GPU.
  held = np.maximum(gated, seconds())
  assert told_apart(held) == pytest.approx(0.5, abs=0.03)


def test_the_quick_check_of_an_incidents_extra_compute():
  """The answer that is asked for; a fixed fleet burns nothing extra."""
  assert SAID.hourly * (2.5 - 1) * 15 / 60 == SAID.row1_net == 2_250
  (net,) = [one for one in claims.check(SOURCE) if one.cell == 'row1_net']
  assert net.recomputed == 0 and net.flagged
