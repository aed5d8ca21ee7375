"""What the room refuses, in a line that names the field and its value."""

import dataclasses
import functools

import numpy as np
import pytest

from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import calibration
from kaiju_jax.fleet import ceilings
from kaiju_jax.fleet import claims
from kaiju_jax.fleet import economics
from kaiju_jax.fleet import incident
from kaiju_jax.fleet import people
from kaiju_jax.fleet import queueing
from kaiju_jax.fleet import simulator
from kaiju_jax.fleet import traffic
from kaiju_jax.model import presets
from kaiju_jax.tpu_gpu_configs.chips import h100
from tests.fleet import small_fleet

OURS, SOURCE = book_lib.load('ours'), book_lib.load('source')
GIVEN = book_lib.inputs(OURS)


def ours(changed):
  return lambda: book_lib.load('ours', [changed])


def cell(*fields):
  return lambda: claims.check({**SOURCE, 'output': book_lib.Cell(*fields)})


def fleet(**changes):
  setup = functools.partial(dataclasses.replace, small_fleet.SETUP)
  return lambda: small_fleet.run(setup(**changes), small_fleet.alone())


def size(**changes):
  return fleet(sizes=small_fleet.SIZES._replace(**changes))


def law(**changes):
  return fleet(law=small_fleet.LAW._replace(**changes))


PREFIX_ALONE = simulator.Trace(*[np.ones(1, int)] * 7)


@pytest.mark.parametrize(
  'call, message',
  [
    (ours('hit_rate=1.2'), r'^hit_rate=1.2: must lie between 0 and 1\.$'),
    (ours('gpu_price=-2'), '^gpu_price=-2: must be a number of 0 or more'),
    (ours('gpu_price=0'), '^gpu_price=0: must be above 0'),
    (ours('fixed=nan'), '^fixed=nan: must be finite'),
    (ours('pooled=0.5'), '^pooled=0.5: must be at least 1'),
    (ours('peak_to_mean=0.5'), '^peak_to_mean=0.5: must be at least 1'),
    (ours('hits=1'), 'hits: the book has no such cell'),
    (ours('hit_rate'), 'set=hit_rate: could not convert'),
    (lambda: book_lib.load('theirs'), "book='theirs': must be one of"),
    (cell(1.0, '', 'sure', 'x'), "output: label='sure': must be one"),
    (cell(1.0, '', 'guess', ''), 'output: where is missing'),
    (cell(float('nan'), '', 'guess', 'x'), 'output=nan: must be fin'),
    (cell(3, '', 'guess', 'x', 4, 5), 'output=3: must lie between'),
    (
      lambda: book_lib.inputs({'slo': OURS['slo']}),
      'message_rate, .* missing from the book',
    ),
    (
      lambda: book_lib.tornado({**OURS, 'slo': OURS['slo']._replace(low=1e-3)}),
      '^slo=0.001: slo=0.001 s',
    ),
    (lambda: economics.source_calculator(GIVEN, 0), 'rate=0: must be above'),
    (
      lambda: economics.cost(dataclasses.replace(GIVEN, slo=1e-3)),
      'slo=0.001 s: must be above the mean service',
    ),
    (
      lambda: ceilings.most_rows(presets.preset('110b'), h100.CHIP, 1_000),
      'H100 SXM has 79 GiB: too little',
    ),
    (lambda: incident.cost(OURS, -1), 'detection=-1: must be at least 0'),
    (lambda: incident.source_cost(SOURCE, -1), 'detection=-1: must be at'),
    *(
      (lambda text=text: incident.minutes(text), f"^detect='{text}': must be a")
      for text in ('', '15', '-5m', '0m', '15 m', '1d', 'm')
    ),
    *(
      (functools.partial(kind, **{field: value}), f'^{field}={message}')
      for kind in (traffic.Traffic, people.People)
      for field, value, message in (
        ('requests', 0, '0: must be at least 1'),
        ('swipes', 1.0, '1.0: must be a fraction below 1'),
        ('prefix', (9, 3), r'.9, 3.: must be rising'),
        ('context', 17_000, '17000: must hold a prefix of 16384'),
      )
    ),
    (lambda: traffic.Traffic(turns=0.5), 'turns=0.5: must be at least 1'),
    (
      lambda: people.People(edits=0.9),
      'swipes=0.15, edits=0.9: must sum to less than 1',
    ),
    (lambda: people.People(never=0.0), 'never=0.0: must be above 0'),
    (lambda: people.People(peak=3.0), 'peak=3.0: must be 1 to 2 times'),
    (lambda: people.People(visit=0.5), 'visit=0.5: must be at least 1'),
    (fleet(replicas=0), 'replicas=0: must be 1 to'),
    (fleet(policy='best'), "policy='best': must be one of random,"),
    (fleet(faults=[(1.0, 0, 7, 0.0)]), 'faults: .* names replica 7, of 1'),
    (law(row=-1.0), 'law.row=-1.0: must be seconds'),
    (law(fixed=0.0), 'law.fixed=0: a round takes time'),
    (size(rows=0), 'sizes.rows=0: must be at least 1'),
    (size(rows=257), 'sizes.rows=257: must be at most 256'),
    (size(local_pages=10), r'sizes.local_pages=10: a text of'),
    (
      lambda: small_fleet.run(small_fleet.SETUP, PREFIX_ALONE),
      'prompt=1 of request 0: must be longer than its prefix, 1',
    ),
    (
      lambda: calibration.fit(np.ones((4, 5)), np.ones(4)),
      'rounds=4: a fit needs at least 5',
    ),
    (
      lambda: calibration.fit(np.ones((6, 5)), np.zeros(6)),
      'seconds: each round must take some',
    ),
    (lambda: queueing.wait_probability(3, 1.0), 'load=1: must be above 0'),
    (lambda: queueing.wait_probability(3, -0.1), 'load=-0.1: must be above'),
    (lambda: queueing.wait_probability(0, 0.5), 'servers=0: must be at least'),
    (lambda: queueing.highest_load(3, 3.0, 2.5), 'slo=2.5 s: must be above'),
    (lambda: queueing.lru_hit_rate(0, 1, 1.0), 'things=0: must be at least'),
    (lambda: queueing.lru_hit_rate(5, 0, 1.0), 'kept=0: must be at least'),
    (lambda: queueing.lru_hit_rate(5, 1, -1.0), 'exponent=-1: must be at'),
  ],
)
def test_impossible_inputs_are_refused(call, message):
  with pytest.raises(ValueError, match=message) as raised:
    call()
  assert len(str(raised.value).splitlines()) == 1
