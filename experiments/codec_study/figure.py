"""A codec's error against magnitude, as one figure.

Left, the distance along |x| over the largest of its eight; in the middle, the
share that is flushed; right, how many of the numbers are that small.
"""

from collections.abc import Mapping
import os
from typing import Any

import numpy as np

from kaiju_jax.runs import report

from . import quality as codec_quality

_X_LABEL = '|x| / largest of its block of eight'
# Squinch in blues, integers in oranges, MXFP6 in greens; bf16 grey.
_STYLES = {
  'bf16': ('#8a8a8a', '-'),
  'zero': ('#0b4f8a', '-'),
  'floor': ('#56b4e9', '-'),
  'fitted': ('#7a3fa0', '-'),
  'int8': ('#a63603', ':'),
  'int6': ('#d55e00', '--'),
  'int4': ('#f1a340', '-'),
  'mxfp6 e2m3': ('#00583f', '--'),
  'mxfp6 e3m2': ('#009e73', '-'),
}


def draw(
  curves: Mapping[str, codec_quality.Curve],
  path: str | os.PathLike,
  title: str,
) -> None:
  """Writes the figure as a PNG: see `page`."""
  report.save(page(curves, title), path)


def page(curves: Mapping[str, codec_quality.Curve], title: str) -> Any:
  """Returns the figure of {codec: curve}.

  Codecs without a style of their own (f32, the second headers) are left out:
  they would lie on zero, or on their neighbours.
  """
  drawn = report.figure(13, 4.6)
  error, flushed, share = drawn.subplots(1, 3)
  for name, (color, dashes) in _STYLES.items():
    if name not in curves:
      continue
    found = curves[name]
    style = {'color': color, 'ls': dashes, 'lw': 1.6}
    error.plot(_middle(found), found.distance, label=name, **style)
    flushed.plot(_middle(found), 100 * found.flushed, **style)
  error.set_yscale('log')
  error.set_ylabel('mean 2·|x − y| / (|x| + |y|); 2 where flushed')
  error.set_title('Error')
  flushed.set_ylabel('flushed to zero (%)')
  flushed.set_title('Flushed')
  any_curve = next(iter(curves.values()))
  share.fill_between(
    _middle(any_curve),
    100 * any_curve.count / any_curve.count.sum(),
    color='#bbbbbb',
    step='mid',
  )
  width = any_curve.log2[0] - any_curve.log2[1]
  share.set_ylabel(f'share of the numbers (%), bins of {width:g} octaves')
  share.set_title('Where the numbers are')
  for axes in (error, flushed, share):
    axes.set_xscale('log', base=2)
    axes.set_xlabel(_X_LABEL)
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
  drawn.legend(loc='outside right upper', frameon=False)
  drawn.suptitle(title, fontsize=11)
  return drawn


def _middle(found: codec_quality.Curve) -> np.ndarray:
  """Returns the bins' geometric middles."""
  return np.exp2(found.log2 + (found.log2[0] - found.log2[1]) / 2)
