"""Tables fit a terminal and say what was measured; the figure is labelled."""

import numpy as np

from kaiju_jax.experiments.studies import codecs as study
from kaiju_jax.reporting import figures
from tests import printing


def test_the_table_of_codecs():
  found = study.quality(study.tally([4, -2, 1, 0, 0], [2, -4, 0, 7, 0]))
  exact = study.quality(study.tally([4, -2], [4, -2]))
  text = printing.printed(
    study.qualities(
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
    name: study.curve(x_RC, x_RC * factor)
    for name, factor in (('zero', 1.1), ('int4', 1.2), ('f32', 1.0))
  }
  page = study.draw(curves, 'Title')
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
