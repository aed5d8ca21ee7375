"""Compares codecs on the gradients of a run: captures them, and codes them.

Measures of a codec: how far off numbers are, how many are lost, which way.

Over all x, with y what arrives:

    snr        10 · log₁₀(Σ x² / Σ (x − y)²), dB: the largest numbers decide
    cosine     of the angle between x and y
    gain       Σ x·y / Σ x² − 1: how far y is stretched along x

and over the x that are not zero, each counting the same, which is how Adam
reads a gradient:

    flushed    share with y = 0
    signs      share with x·y < 0
    log_error  mean |ln(|y| / |x|)| of those that arrive (y ≠ 0): read it beside
               `flushed`, for flushing the worst numbers lowers it
    distance   mean of 2·|x − y| / (|x| + |y|), at most 2, which is what a
               flushed number or a wrong sign counts: it compares codecs that
               flush with those that do not (our choice)
    bias       mean of (y − x) / x, what is flushed counting −1; without
               flushing the smallest numbers decide it

and over the x that are zero

    raised     share with y ≠ 0
"""

from collections.abc import Iterable
from collections.abc import Mapping
import copy
import dataclasses
import math
import pathlib
import time
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from kaiju_jax.data import loader
from kaiju_jax.experiments.studies import gradients
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.runs import train
from kaiju_jax.storage import files
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import optimizer
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step as step_lib
from kaiju_jax.wire import codecs


class Tally(NamedTuple):
  """Sums from which `Quality` follows; those of two arrays add up."""

  count: float = 0.0
  square: float = 0.0
  arrived_square: float = 0.0
  product: float = 0.0
  error_square: float = 0.0
  nonzero: float = 0.0
  flushed: float = 0.0
  wrong_sign: float = 0.0
  log_error: float = 0.0
  distance: float = 0.0
  relative: float = 0.0
  raised: float = 0.0


class Quality(NamedTuple):
  """See the module's text; NaN where there is nothing to take a mean of."""

  snr: float
  cosine: float
  gain: float
  flushed: float
  signs: float
  log_error: float
  distance: float
  bias: float
  raised: float


def tally(x: np.ndarray, y: np.ndarray) -> Tally:
  """Returns the sums over one array.

  Args:
    x: what was sent, finite.
    y: what arrived, of the same shape.

  Raises:
    ValueError: other shapes, or numbers that are not finite.
  """
  x, y = np.asarray(x, np.float64).ravel(), np.asarray(y, np.float64).ravel()
  if x.shape != y.shape:
    raise ValueError(f'{x.size} numbers sent, {y.size} arrived.')
  if not (np.isfinite(x).all() and np.isfinite(y).all()):
    raise ValueError('inf or NaN among the numbers: nothing can be said.')
  live = x != 0
  x_live, y_live = x[live], y[live]
  arrived = y_live != 0
  ratio = y_live[arrived] / x_live[arrived]
  return Tally(
    count=x.size,
    square=float(x @ x),
    arrived_square=float(y @ y),
    product=float(x @ y),
    error_square=float((x - y) @ (x - y)),
    nonzero=x_live.size,
    flushed=x_live.size - ratio.size,
    wrong_sign=float(np.sum(ratio < 0)),
    log_error=float(np.sum(np.abs(np.log(np.abs(ratio))))),
    distance=float(np.sum(distance(x_live, y_live))),
    relative=float(np.sum(y_live / x_live - 1)),
    raised=float(np.sum(y[~live] != 0)),
  )


def distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Returns 2·|x − y| / (|x| + |y|) of each pair, x not zero."""
  return 2 * np.abs(x - y) / (np.abs(x) + np.abs(y))


def total(tallies: Iterable[Tally]) -> Tally:
  """Returns the sums over several arrays together."""
  return Tally(*(sum(column) for column in zip(Tally(), *tallies)))


def quality(sums: Tally) -> Quality:
  """Returns what the sums amount to."""
  zeros = sums.count - sums.nonzero
  norms = np.sqrt(sums.square * sums.arrived_square)
  snr = np.inf
  if sums.error_square:
    snr = 10 * np.log10(_share(sums.square, sums.error_square))
  return Quality(
    snr=float(snr),
    cosine=_share(sums.product, norms),
    gain=_share(sums.product - sums.square, sums.square),
    flushed=_share(sums.flushed, sums.nonzero),
    signs=_share(sums.wrong_sign, sums.nonzero),
    log_error=_share(sums.log_error, sums.nonzero - sums.flushed),
    distance=_share(sums.distance, sums.nonzero),
    bias=_share(sums.relative, sums.nonzero),
    raised=_share(sums.raised, zeros),
  )


def _share(part: float, whole: float) -> float:
  return float(part / whole) if whole else float('nan')


class Curve(NamedTuple):
  """Along the size of x against the largest of its Squinch block."""

  # Lower edges of the bins, in octaves below the largest (0 … −n).
  log2: np.ndarray
  count: np.ndarray  # Numbers in each bin.
  distance: np.ndarray  # Mean in each bin; NaN in an empty one.
  flushed: np.ndarray  # Share in each bin.


def curve(
  x_RC: np.ndarray,
  y_RC: np.ndarray,
  octaves: int = 14,
  bins_an_octave: int = 4,
  block: int = 8,
) -> Curve:
  """Returns the error along the magnitude.

  Args:
    x_RC: what was sent; R a multiple of `block`.
    octaves: how far below the block's largest; what is smaller is left out.
    block: rows whose largest is 1, the same for every codec.
  """
  x_GIC = np.abs(np.asarray(x_RC, np.float64)).reshape(-1, block, x_RC.shape[1])
  largest_G1C = x_GIC.max(axis=1, keepdims=True)
  with np.errstate(divide='ignore', invalid='ignore'):
    below = -np.log2(x_GIC / largest_G1C).reshape(x_RC.shape)
  bins = octaves * bins_an_octave
  keep = below < octaves  # False for zeros, and for blocks of nothing else.
  place = np.floor(below[keep] * bins_an_octave).astype(int)
  x, y = np.asarray(x_RC)[keep], np.asarray(y_RC)[keep]

  def summed(weights):
    return np.bincount(place, weights, minlength=bins)[:bins]

  count = summed(np.ones(x.size))
  with np.errstate(invalid='ignore'):
    return Curve(
      log2=-(np.arange(bins) + 1) / bins_an_octave,
      count=count,
      distance=summed(distance(x, y)) / count,
      flushed=summed(y == 0) / count,
    )


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
) -> tuple[dict[str, dict[str, Quality]], dict[str, Curve]]:
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
    tallies = {kind: tally(x, y) for kind, (x, y) in zip(found, parts)}
    tallies['all'] = total(tallies.values())
    qualities[codec.name] = {
      kind: quality(sums) for kind, sums in tallies.items()
    }
    curves[codec.name] = curve(x_RC[:, plotted], y_RC[:, plotted])
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
  rows: Mapping[str, Quality],
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


def draw(curves: Mapping[str, Curve], title: str) -> Any:
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


def _middle(found: Curve) -> np.ndarray:
  """Returns the bins' geometric middles."""
  return np.exp2(found.log2 + (found.log2[0] - found.log2[1]) / 2)


def run(settings: settings_lib.Codecs) -> None:
  """Trains, captures, and prints and writes what the codecs do.

  Raises:
    OSError, ValueError: something cannot be read or written, or is wrong.
  """
  experiment = settings.config
  experiment.seed = settings.seed
  train.check(experiment)
  figures.require_figures()

  bits = {codec.name: codec.bits for codec in codecs.CODECS}
  captured = capture(
    experiment, settings.steps, settings.workers, settings.dtype
  )
  found, curves = measure(
    gradients.join(captured, settings.across), settings.seed
  )
  written = pathlib.Path(settings.json), pathlib.Path(settings.figure)
  for path in written:
    path.parent.mkdir(parents=True, exist_ok=True)
  setting = {
    'config': dataclasses.asdict(experiment),
    'steps': settings.steps,
    'workers': settings.workers,
    'gradient_dtype': settings.dtype,
    'across': settings.across,
  }
  measured = {
    name: {'bits': bits[name], 'quality': kinds}
    for name, kinds in found.items()
  }
  files.write_json(
    written[0], report.plain({'setting': setting, 'codecs': measured})
  )
  of = f'{settings.workers} workers after {settings.steps} steps'
  figures.save(
    draw(curves, f'Gradients of {of}: what arrives (y) of what was sent (x)'),
    written[1],
  )
  table = qualities(
    f'Codecs on the gradients of {settings.workers} workers, step'
    f' {settings.steps}',
    {name: kinds['all'] for name, kinds in found.items()},
    bits,
  )
  report.Report().add(table).show(written)
