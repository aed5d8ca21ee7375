"""What the room refuses, in a line that names the field and its value."""

import dataclasses

import pytest

from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import ceilings
from kaiju_jax.fleet import claims
from kaiju_jax.fleet import economics
from kaiju_jax.fleet import incident
from kaiju_jax.fleet import queueing
from kaiju_jax.model import presets
from kaiju_jax.tpu_gpu_configs.chips import h100

OURS, SOURCE = book_lib.load('ours'), book_lib.load('source')
GIVEN = book_lib.inputs(OURS)


def ours(changed):
  return lambda: book_lib.load('ours', [changed])


def cell(*fields):
  return lambda: claims.check({**SOURCE, 'output': book_lib.Cell(*fields)})


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
