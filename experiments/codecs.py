"""What do 6 bits cost a gradient? Codecs on real ones.

    python -m experiments.codecs [--config=tiny] [--steps=60]
        [--workers=8] [--seed=0] [--json=PATH] [--figure=PATH]

Trains the config (tiny by default) for --steps, and then takes the gradients
that so many workers would send, each of a microbatch of its own. Prints how far
each codec's gradients are from them, and writes it as JSON, and error against
magnitude as a PNG. The gradients are taken in float32 (--dtype), the int8
matmuls as in training: in the model's bfloat16 they would come out rounded, and
the bf16 row exact.
"""

from collections.abc import Sequence
import copy
import dataclasses
import pathlib
import time

from absl import flags
from ml_collections import config_flags

from kaiju_jax.runs import command
from kaiju_jax.runs import report
from kaiju_jax.runs import train

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  str(pathlib.Path(__file__).parent / 'configs' / 'tiny.py'),
  'What is trained: NAME:ARM, or PATH:ARM.',
  lock_config=True,
)
_STEPS = flags.DEFINE_integer(
  'steps', 60, 'Optimizer steps before gradients are taken.', lower_bound=1
)
_WORKERS = flags.DEFINE_integer(
  'workers', 8, 'Gradients taken, each of its own microbatch.', lower_bound=2
)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of parameters and data.')
_DTYPE = flags.DEFINE_enum(
  'dtype',
  'float32',
  ['float32', 'bfloat16'],
  'Dtype of the gradients.',
)
_ACROSS = flags.DEFINE_boolean(
  'across', False, 'Blocks across the other dimensions, not along d_model.'
)
_JSON = flags.DEFINE_string(
  'json', 'runs/codecs/codecs.json', 'Where the figures go.'
)
_FIGURE = flags.DEFINE_string(
  'figure', 'runs/codecs/codecs.png', 'Where the plot goes.'
)
# Numbers that the plot is made from: more move no third digit.
_SAMPLE = 1_600_000


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  experiment = _CONFIG.value
  experiment.seed = _SEED.value
  train.check(experiment)
  _report(experiment)


def _report(experiment) -> None:
  """Trains, captures, and prints and writes what the codecs do."""
  report.require_figures()
  import rich.console

  from .codec_study import gradient_capture
  from .codec_study import gradient_codecs
  from .codec_study import report as codec_report

  console = rich.console.Console()
  found, curves = _measured(
    gradient_capture.join(_captured(experiment), _ACROSS.value)
  )
  console.print(
    codec_report.qualities(
      f'Codecs on the gradients of {_WORKERS.value} workers,'
      f' step {_STEPS.value}',
      {name: kinds['all'] for name, kinds in found.items()},
      {codec.name: codec.bits for codec in gradient_codecs.CODECS},
    )
  )

  _write(experiment, found)
  _draw(curves)
  console.print(f'Written: {_JSON.value}, {_FIGURE.value}')


def _captured(experiment):
  """Returns the list of the workers' gradients."""
  from kaiju_jax.data import loader
  from kaiju_jax.tasks import registry as tasks
  from kaiju_jax.training import optimizer
  from kaiju_jax.training import state as state_lib
  from kaiju_jax.training import step as step_lib

  from .codec_study import gradient_capture

  started = time.monotonic()
  batches = loader.batches(
    tasks.rows(experiment), experiment.data.batch, experiment.data.microbatches
  )
  params = state_lib.init_params(step_lib.model_of(experiment), experiment.seed)
  state = state_lib.create(params, optimizer.make(experiment.optimizer))
  step = step_lib.make(experiment)
  read = copy.deepcopy(experiment)
  read.model.dtype = _DTYPE.value
  gradient = gradient_capture.capture(read)
  for _ in range(_STEPS.value):
    state, values = step(state, next(batches))
  found = [gradient(state, next(batches)) for _ in range(_WORKERS.value)]
  batches.close()
  print(
    f'Step {_STEPS.value}: loss {float(values["loss"]):.3f},'
    f' {time.monotonic() - started:.0f} s.',
    flush=True,
  )
  return found


def _measured(gradients):
  """Returns {codec: {kind of matrix, and 'all': quality}}, {codec: curve}."""
  import jax
  import numpy as np

  from .codec_study import gradient_capture
  from .codec_study import gradient_codecs
  from .codec_study import quality as codec_quality

  # All kinds in one array, so that a codec compiles once.
  x_RC = gradient_capture.pool(gradients)
  rows, columns = x_RC.shape
  ends = np.cumsum([one.size // rows for one in gradients.values()])[:-1]
  plotted = np.random.default_rng(_SEED.value).permutation(columns)
  plotted = plotted[: max(1, _SAMPLE // rows)]
  found, curves = {}, {}
  for codec in gradient_codecs.CODECS:
    y_RC = np.asarray(jax.jit(codec.round_trip)(x_RC))
    parts = zip(np.split(x_RC, ends, 1), np.split(y_RC, ends, 1))
    tallies = {
      kind: codec_quality.tally(x, y) for kind, (x, y) in zip(gradients, parts)
    }
    tallies['all'] = codec_quality.total(tallies.values())
    found[codec.name] = {
      kind: codec_quality.quality(sums) for kind, sums in tallies.items()
    }
    curves[codec.name] = codec_quality.curve(x_RC[:, plotted], y_RC[:, plotted])
  return found, curves


def _write(experiment, found) -> None:
  """Writes --json."""
  from kaiju_jax.storage import files

  from .codec_study import gradient_codecs

  bits = {codec.name: codec.bits for codec in gradient_codecs.CODECS}
  path = pathlib.Path(_JSON.value)
  path.parent.mkdir(parents=True, exist_ok=True)
  files.write_json(
    path,
    _plain(
      {
        'setting': {
          'config': dataclasses.asdict(experiment),
          'steps': _STEPS.value,
          'workers': _WORKERS.value,
          'gradient_dtype': _DTYPE.value,
          'across': _ACROSS.value,
        },
        'codecs': {
          name: {'bits': bits[name], 'quality': kinds}
          for name, kinds in found.items()
        },
      }
    ),
  )


def _plain(value):
  """Returns what JSON can hold: None for inf and NaN, lists for arrays."""
  import math

  import numpy as np

  if hasattr(value, '_asdict'):
    value = value._asdict()
  if isinstance(value, dict):
    return {key: _plain(one) for key, one in value.items()}
  if isinstance(value, np.ndarray | list | tuple):
    return [_plain(one) for one in value]
  if isinstance(value, float):
    return float(value) if math.isfinite(value) else None
  return value


def _draw(curves) -> None:
  """Writes --figure."""
  from .codec_study import figure as codec_figure

  path = pathlib.Path(_FIGURE.value)
  path.parent.mkdir(parents=True, exist_ok=True)
  codec_figure.draw(
    curves,
    path,
    f'Gradients of {_WORKERS.value} workers after {_STEPS.value} steps:'
    ' what arrives (y) of what was sent (x)',
  )


if __name__ == '__main__':
  command.run(main)
