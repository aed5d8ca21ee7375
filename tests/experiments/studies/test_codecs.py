"""Codecs' figures of merit by hand, their table and figure, and the command."""

import json
import math

import numpy as np
import pytest

from kaiju_jax.experiments.studies import codecs
from kaiju_jax.reporting import figures
from tests import printing
from tests import toys
from tests.experiments import forked


def test_quality_by_hand():
  x = [4.0, -2.0, 1.0, -1.0, 0.0, 0.0]
  y = [2.0, -3.0, 0.0, 0.5, 0.0, 7.0]
  found = codecs.quality(codecs.tally(x, y))
  # Σx² = 22; errors 2, 1, 1, −1.5, 0, −7: Σ = 4 + 1 + 1 + 2.25 + 49 = 57.25.
  assert found.snr == pytest.approx(10 * math.log10(22 / 57.25))
  # Σxy = 8 + 6 − 0.5 = 13.5; Σy² = 4 + 9 + 0.25 + 49 = 62.25.
  assert found.cosine == pytest.approx(13.5 / math.sqrt(22 * 62.25))
  assert found.gain == pytest.approx(13.5 / 22 - 1)
  # Four are not zero: one is flushed, one turned round.
  assert found.flushed == 0.25
  assert found.signs == 0.25
  # Of the three that arrive: ln 2, ln 1.5, ln 2.
  assert found.log_error == pytest.approx(
    (math.log(2) + math.log(1.5) + math.log(2)) / 3
  )
  # 2·2/6, 2·1/5, and 2 for each of what is flushed and what is turned round.
  assert found.distance == pytest.approx((2 / 3 + 0.4 + 2 + 2) / 4)
  # −1/2, +1/2, −1, −3/2.
  assert found.bias == pytest.approx(-2.5 / 4)
  # Of two zeros, one arrives as 7.
  assert found.raised == 0.5


def test_what_arrives_as_it_was_has_no_error():
  x = np.array([[1.0, -2], [0, 3]])
  found = codecs.quality(codecs.tally(x, x))
  assert found.snr == math.inf and found.cosine == pytest.approx(1)
  assert found[2:] == (0, 0, 0, 0, 0, 0, 0)


def test_zeros_alone_have_no_errors_to_speak_of():
  found = codecs.quality(codecs.tally([0.0, 0.0], [0.0, 0.0]))
  assert math.isnan(found.log_error) and math.isnan(found.flushed)
  assert found.raised == 0


def test_small_errors_are_the_same_in_the_logarithm_and_in_the_distance():
  x = np.random.default_rng(0).standard_normal(1000)
  y = x * (1 + 0.01 * np.random.default_rng(1).standard_normal(1000))
  found = codecs.quality(codecs.tally(x, y))
  assert found.distance == pytest.approx(found.log_error, rel=1e-4)


def test_tallies_of_parts_add_up_to_that_of_the_whole():
  rng = np.random.default_rng(0)
  x, y = rng.integers(-3, 4, (2, 60)).astype(float)
  parts = [codecs.tally(x[a:b], y[a:b]) for a, b in ((0, 7), (7, 40), (40, 60))]
  whole = codecs.tally(x, y)
  np.testing.assert_allclose(codecs.total(parts), whole, rtol=1e-12)


def test_the_curve_by_hand():
  # Largest 8: octaves below it 0, 0.6, 1, 1.25, 2 and beyond; and a zero.
  x_RC = np.array([[8, -(2**2.4), 4, 2**1.75, -2, 2**-20, 0, 8]]).T
  y_RC = np.array([[8, -(2**2.4), 2, 0.0, -2, 1.0, 5, 16]]).T
  found = codecs.curve(x_RC, y_RC, octaves=3, bins_an_octave=2)
  assert found.log2.tolist() == [-0.5, -1, -1.5, -2, -2.5, -3]
  assert found.count.tolist() == [2, 1, 2, 0, 1, 0]
  # 2·8/24 and 0; 0; 2·2/6 and, flushed, 2; 0.
  np.testing.assert_allclose(
    found.distance, [1 / 3, 0, (2 / 3 + 2) / 2, np.nan, 0, np.nan]
  )
  np.testing.assert_allclose(found.flushed, [0, 0, 0.5, np.nan, 0, np.nan])


def test_the_curve_has_no_place_for_a_block_of_zeros():
  zeros_RC = np.zeros((8, 2))
  assert codecs.curve(zeros_RC, zeros_RC).count.sum() == 0


def test_what_cannot_be_compared_is_refused():
  with pytest.raises(ValueError, match='3 numbers sent, 2 arrived'):
    codecs.tally([1, 2, 3], [1, 2])
  with pytest.raises(ValueError, match='inf or NaN'):
    codecs.tally([1.0], [math.nan])


def test_the_table_of_codecs():
  found = codecs.quality(codecs.tally([4, -2, 1, 0, 0], [2, -4, 0, 7, 0]))
  exact = codecs.quality(codecs.tally([4, -2], [4, -2]))
  text = printing.printed(
    codecs.qualities(
      'Title',
      {'floor-q': found, 'f32': exact},
      {'floor-q': 6, 'f32': 32},
    )
  )
  cells = [
    line.split()
    for line in text.splitlines()
    if line.split()[:1] in (['floor-q'], ['f32'])
  ]
  # Errors 2, 2, 1, 7: 21/58; |ln| of 1/2 and 2; distances 2/3, 2/3 and 2; one
  # of three flushed; bias (−1/2 + 1 − 1)/3; gain 16/21 − 1; a zero of two.
  assert cells[0] == [
    *('floor-q', '6', '-4.4', '.6931', '1.1111'),
    *('33.33', '0', '-16.67', '-23.81', '50.00'),
  ]
  assert cells[1] == ['f32', '32', 'exact', *'000000–']
  assert '…' not in text


def test_the_figure_has_labels_and_every_codec_with_a_style(tmp_path):
  x_RC = np.random.default_rng(0).standard_normal((8, 500))
  curves = {
    name: codecs.curve(x_RC, x_RC * factor)
    for name, factor in (('zero', 1.1), ('int4', 1.2), ('f32', 1.0))
  }
  page = codecs.draw(curves, 'Title')
  error = page.axes[0]
  assert [line.get_label() for line in error.lines] == ['zero', 'int4']
  drawn = error.lines[0].get_ydata()
  np.testing.assert_allclose(
    drawn[np.isfinite(drawn)], 2 * 0.1 / 2.1, rtol=1e-6
  )
  # The first bin is the quarter of an octave below the block's largest.
  assert error.lines[0].get_xdata()[0] == 2 ** (-1 / 8)
  for axes in page.axes:
    assert axes.get_xlabel() and axes.get_ylabel()
  figures.save(page, tmp_path / 'one.png')
  assert (tmp_path / 'one.png').stat().st_size > 10_000


@pytest.mark.slow
def test_a_small_run(tmp_path):
  overrides = {
    'model.d_model': 32,
    'model.num_layers': 1,
    'model.num_heads': 2,
    'model.head_dim': 16,
    'model.d_ff': 32,
    'model.max_length': 64,
    'data.path': toys.write_texts(tmp_path),
    'data.length': 32,
    'data.batch': 2,
    'data.held_out': 0.2,
  }
  out = tmp_path / 'out' / 'codecs'
  words = f'experiments.codecs --steps=2 --workers=2 --json={out}.json'
  words += f' --figure={out}.png'
  fields = [f'--config.{name}={value}' for name, value in overrides.items()]
  (done,) = forked.run([[*words.split(), *fields]])
  assert done.returncode == 0, done.stderr
  for word in ('mxfp6 e3m2', 'step 2', 'Written'):
    assert word in done.stdout
  assert out.with_suffix('.png').stat().st_size > 10_000
  found = json.loads(out.with_suffix('.json').read_text())
  by_name = {x: y['quality'] for x, y in found['codecs'].items()}
  assert by_name['f32']['all']['snr'] is None  # Exact.
  of_zero = by_name['zero']
  assert {'w_in_DF', 'w_o_DHK', 'embedding_DV', 'all'} <= set(of_zero)
  # float32 gradients: bf16 is not exact on them.
  assert 40 < by_name['bf16']['all']['snr'] < 70
  snr = [by_name[x]['all']['snr'] for x in ('int8', 'int6', 'int4')]
  assert snr == sorted(snr, reverse=True)
  assert found['setting']['config']['model']['d_model'] == 32
