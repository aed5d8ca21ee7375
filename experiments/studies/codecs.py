"""Compares codecs on the gradients of a run: captures them, and codes them."""

from collections.abc import Mapping
import copy
import time

import jax
import numpy as np

from kaiju_jax.data import loader
from kaiju_jax.experiments.studies import codec_quality
from kaiju_jax.experiments.studies import gradients
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
