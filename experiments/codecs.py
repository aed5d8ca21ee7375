"""What do 6 bits cost a gradient? Codecs and level maps, on real ones.

    python -m experiments.codecs [--config=tiny] [--steps=20,60]
        [--workers=8] [--seed=0] [--json=PATH] [--figure=PATH]

Trains the config (tiny by default) for the last of --steps, and after each of
them takes the gradients that so many workers would send, each of a microbatch
of its own. Prints

    codecs       on all workers' gradients of the last step
    level maps   Squinch's two, the best power law and the best sixteen levels,
                 on distributions and on these gradients
    held out     maps fitted to half of the workers at the first step, tried on
                 the other half at the last

and writes all of it as JSON, and error against magnitude as a PNG. The
gradients are taken in float32 (--dtype), the int8 matmuls as in training: in
the model's bfloat16 they would come out rounded, and the bf16 row exact.
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
_STEPS = flags.DEFINE_list(
  'steps', ['20', '60'], 'Optimizer steps after which gradients are taken.'
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
_HEADER = flags.DEFINE_enum(
  'header', 'ln6', ['ln6', 'quarter'], 'Header of Squinch, for the level maps.'
)
_ACROSS = flags.DEFINE_boolean(
  'across', False, 'Blocks across the other dimensions, not along d_model.'
)
_BLOCKS = flags.DEFINE_integer(
  'blocks', 100_000, 'Blocks of eight of a drawn distribution.', lower_bound=1
)
_JSON = flags.DEFINE_string(
  'json', 'runs/codecs/codecs.json', 'Where the figures go.'
)
_FIGURE = flags.DEFINE_string(
  'figure', 'runs/codecs/codecs.png', 'Where the plot goes.'
)
# Numbers that level maps and the plot are made from: more move no third digit.
_SAMPLE = 1_600_000


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  steps = _steps()
  experiment = _CONFIG.value
  experiment.seed = _SEED.value
  train.check(experiment)
  _report(experiment, steps)


def _steps() -> list[int]:
  """Returns --steps, ascending.

  Raises:
    ValueError: names what is no step.
  """
  for step in _STEPS.value:
    if not (step.isascii() and step.isdigit() and int(step)):
      raise ValueError(
        f'--steps: {step!r} is not a positive whole number; write 20,60.'
      )
  if not _STEPS.value:
    raise ValueError('--steps is empty: at least one is needed, as 60.')
  return sorted({int(step) for step in _STEPS.value})


def _report(experiment, steps: list[int]) -> None:
  """Trains, captures, and prints and writes what the codecs do."""
  report.require_figures()
  import rich.console

  from .codec_study import gradient_capture
  from .codec_study import gradient_codecs
  from .codec_study import level_study
  from .codec_study import report as codec_report

  console = rich.console.Console()
  captures = _captures(experiment, steps)
  found, curves = _measured(
    gradient_capture.joined(captures[-1], _ACROSS.value)
  )
  console.print(
    codec_report.qualities(
      f'Codecs on the gradients of {_WORKERS.value} workers, step {steps[-1]}',
      {name: kinds['all'] for name, kinds in found.items()},
      {codec.name: codec.bits for codec in gradient_codecs.CODECS},
    )
  )

  drawn = level_study.distributions(_BLOCKS.value, _SEED.value)
  drawn['these gradients'] = _sample(captures[-1])
  studies = {
    name: level_study.study(x_RC, _HEADER.value) for name, x_RC in drawn.items()
  }
  console.print(codec_report.studies(studies))

  maps = level_study.fitted(_sample(captures[0][::2]), _HEADER.value)
  held_out = level_study.held_out(
    maps, _sample(captures[-1][1::2]), _HEADER.value
  )
  console.print(
    codec_report.qualities(
      f'Maps fitted at step {steps[0]}, tried on other workers at step'
      f' {steps[-1]}',
      held_out,
    )
  )
  _write(experiment, steps, found, studies, maps, held_out)
  _draw(curves, steps[-1])
  console.print(f'Written: {_JSON.value}, {_FIGURE.value}')


def _sample(captures):
  """Returns blocks of these workers' gradients, float32[32, C]."""
  from .codec_study import gradient_capture
  from .codec_study import level_study

  pooled = gradient_capture.pooled(
    gradient_capture.joined(captures, _ACROSS.value)
  )
  return level_study.sampled(pooled, _SAMPLE, _SEED.value)


def _captures(experiment, steps: list[int]):
  """Returns each step's list of the workers' gradients."""
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
  captures = []
  for number in range(1, steps[-1] + 1):
    state, values = step(state, next(batches))
    if number in steps:
      captures.append(
        [gradient(state, next(batches)) for _ in range(_WORKERS.value)]
      )
      print(
        f'Step {number}: loss {float(values["loss"]):.3f},'
        f' {time.monotonic() - started:.0f} s.',
        flush=True,
      )
  batches.close()
  return captures


def _measured(gradients):
  """Returns {codec: {kind of matrix, and 'all': quality}}, {codec: curve}."""
  import jax
  import numpy as np

  from .codec_study import gradient_capture
  from .codec_study import gradient_codecs
  from .codec_study import level_study
  from .codec_study import quality as codec_quality

  # All kinds in one array, so that a codec compiles once.
  x_RC = gradient_capture.pooled(gradients)
  rows, columns = x_RC.shape
  ends = np.cumsum([one.size // rows for one in gradients.values()])[:-1]
  plotted = level_study.sampled(
    np.arange(columns)[None], _SAMPLE // rows, _SEED.value
  )[0]
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


def _write(experiment, steps, found, studies, maps, held_out) -> None:
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
          'steps': steps,
          'workers': _WORKERS.value,
          'gradient_dtype': _DTYPE.value,
          'header': _HEADER.value,
          'across': _ACROSS.value,
        },
        'codecs': {
          name: {'bits': bits[name], 'quality': kinds}
          for name, kinds in found.items()
        },
        'level_maps': studies,
        'fitted': maps,
        'held_out': held_out,
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


def _draw(curves, step: int) -> None:
  """Writes --figure."""
  from .codec_study import figure as codec_figure

  path = pathlib.Path(_FIGURE.value)
  path.parent.mkdir(parents=True, exist_ok=True)
  codec_figure.draw(
    curves,
    path,
    f'Gradients of {_WORKERS.value} workers after {step} steps: what arrives'
    ' (y) of what was sent (x)',
  )


if __name__ == '__main__':
  command.run(main)
