"""Compares codecs on the gradients of a run: captures them, and codes them."""

from collections.abc import Mapping
import copy
import math
import time
from typing import Any

import jax
import numpy as np

from kaiju_jax.data import loader
from kaiju_jax.experiments.studies import codec_quality
from kaiju_jax.experiments.studies import gradients
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import optimizer
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step as step_lib
from kaiju_jax.wire import codecs

# Numbers that the curves are made from: more move no third digit.
_SAMPLE = 1_600_000


def capture(
  experiment: experiment_lib.Experiment, steps: int, workers: int, dtype: str
) -> list[dict[str, np.ndarray]]:
  """Trains, and returns the gradients of so many workers' next microbatches.

  Args:
    experiment: what is trained.
    steps: optimizer steps before the gradients are taken.
    workers: how many gradients.
    dtype: in which they are computed.
  """
  started = time.monotonic()
  batches = loader.batches(
    tasks.rows(experiment), experiment.data.batch, experiment.data.microbatches
  )
  params = state_lib.init_params(step_lib.model_of(experiment), experiment.seed)
  state = state_lib.create(params, optimizer.make(experiment.optimizer))
  step = step_lib.make(experiment)
  read = copy.deepcopy(experiment)
  read.model.dtype = dtype
  gradient = gradients.capture(read)
  for _ in range(steps):
    state, values = step(state, next(batches))
  found = [gradient(state, next(batches)) for _ in range(workers)]
  batches.close()
  print(
    f'Step {steps}: loss {float(values["loss"]):.3f},'
    f' {time.monotonic() - started:.0f} s.',
    flush=True,
  )
  return found


def measure(
  found: Mapping[str, np.ndarray], seed: int = 0
) -> tuple[
  dict[str, dict[str, codec_quality.Quality]], dict[str, codec_quality.Curve]
]:
  """Returns what every codec does to gradients.

  Args:
    found: {kind of matrix: x_RC} of `gradients.join`.
    seed: of the columns that the curves are made from.

  Returns:
    {codec: {kind, and 'all': quality}}, and {codec: error along magnitude}.
  """
  # All kinds in one array, so that a codec compiles once.
  x_RC = gradients.pool(found)
  rows, columns = x_RC.shape
  ends = np.cumsum([one.size // rows for one in found.values()])[:-1]
  plotted = np.random.default_rng(seed).permutation(columns)
  plotted = plotted[: max(1, _SAMPLE // rows)]
  qualities, curves = {}, {}
  for codec in codecs.CODECS:
    y_RC = np.asarray(jax.jit(codec.round_trip)(x_RC))
    parts = zip(np.split(x_RC, ends, 1), np.split(y_RC, ends, 1))
    tallies = {
      kind: codec_quality.tally(x, y) for kind, (x, y) in zip(found, parts)
    }
    tallies['all'] = codec_quality.total(tallies.values())
    qualities[codec.name] = {
      kind: codec_quality.quality(sums) for kind, sums in tallies.items()
    }
    curves[codec.name] = codec_quality.curve(x_RC[:, plotted], y_RC[:, plotted])
  return qualities, curves


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
