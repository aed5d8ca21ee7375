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


def test_without_affinity_the_load_grows_by_less_than_prefill_alone():
  prefill = 1 / (1 - SAID.hit_rate)
  assert prefill == pytest.approx(2.5)
  assert 2.0 < claims.work(SAID, 0.0) < prefill
  # From 98 % it is more than from 60 %, and half the prefixes help.
  worst = economics.work_ratio(OURS, 0.0)
  share = OURS.prefix / OURS.prompt
  random = economics.work_ratio(OURS, SAID.random_hit_rate * share)
  assert worst > random > 5 > prefill
  # A full fleet's queue grows by (load − 1) seconds of work per second.
  lost = incident.lost_load(OURS)
  assert lost > 10 and OURS.slo / (lost - 1) < 1


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
