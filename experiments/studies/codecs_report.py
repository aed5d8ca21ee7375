"""The quality of codecs as a table, and their error along the magnitude."""

from collections.abc import Mapping
import math
from typing import Any

import numpy as np

from kaiju_jax.experiments.studies import codec_quality
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report

_X_LABEL = '|x| / largest of its block of eight'
_DRAWN = (
  *('zero', 'floor', 'fitted', 'int8', 'int6', 'int4'),
  *('mxfp6 e2m3', 'mxfp6 e3m2', 'bf16'),
)
_CAPTION = (
  'SNR in dB; |ln|: mean |ln(|y|/|x|)| of what arrives; dist: mean'
  ' 2|x−y|/(|x|+|y|), 2 for what is flushed. In %: flushed, and of the wrong'
  ' sign, of the numbers that are not zero; raised of the zeros; bias: mean'
  ' (y−x)/x;'
  ' gain: Σxy/Σx² − 1.'
)


def qualities(
  title: str,
  rows: Mapping[str, codec_quality.Quality],
  bits: Mapping[str, float],
) -> report.Table:
  """Returns {name: quality} as a table for a terminal of 80 columns.

  Args:
    title: heading of the table.
    rows: {name: quality}, in the table's order.
    bits: {name: bits per number}.
  """
  return report.Table(
    [
      (
        name,
        f'{bits[name]:g}',
        'exact' if math.isinf(found.snr) else f'{found.snr:.1f}',
        *map(_number, (found.log_error, found.distance)),
        *map(
          _percent,
          (found.flushed, found.signs, found.bias, found.gain, found.raised),
        ),
      )
      for name, found in rows.items()
    ],
    (
      *('codec', 'bits', 'SNR', '|ln|', 'dist'),
      *('flush', 'sign', 'bias', 'gain', 'raised'),
    ),
    title,
    _CAPTION,
    look='narrow',
  )


def _number(value: float) -> str:
  if math.isnan(value):
    return '–'
  return '0' if value == 0 else f'{value:.4f}'.removeprefix('0')


def _percent(value: float) -> str:
  if math.isnan(value):
    return '–'
  return '0' if value == 0 else f'{100 * value:.2f}'


def draw(curves: Mapping[str, codec_quality.Curve], title: str) -> Any:
  """Returns the figure of {codec: curve}.

  Left, the distance along |x| over the largest of its eight; in the middle, the
  share that is flushed; right, how many of the numbers are that small. Codecs
  that would lie on others (f32, the second headers) are left out.
  """
  drawn = figures.figure(13, 4.6)
  error, flushed, share = drawn.subplots(1, 3)
  for index, name in enumerate(_DRAWN):
    if name in curves:
      found, style = curves[name], figures.style(index)
      error.plot(_middle(found), found.distance, label=name, **style)
      flushed.plot(_middle(found), 100 * found.flushed, **style)
  error.set_yscale('log')
  error.set_ylabel('mean 2·|x − y| / (|x| + |y|); 2 where flushed')
  flushed.set_ylabel('flushed to zero (%)')
  any_curve = next(iter(curves.values()))
  share.fill_between(
    _middle(any_curve),
    100 * any_curve.count / any_curve.count.sum(),
    color=figures.GREY,
    step='mid',
  )
  width = any_curve.log2[0] - any_curve.log2[1]
  share.set_ylabel(f'share of the numbers (%), bins of {width:g} octaves')
  for axes in (error, flushed, share):
    axes.set_xscale('log', base=2)
    axes.set_xlabel(_X_LABEL)
  drawn.legend(loc='outside right upper', frameon=False)
  drawn.suptitle(title, fontsize=11)
  return drawn


def _middle(found: codec_quality.Curve) -> np.ndarray:
  """Returns the bins' geometric middles."""
  return np.exp2(found.log2 + (found.log2[0] - found.log2[1]) / 2)
