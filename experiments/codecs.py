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
import dataclasses
import pathlib

from absl import flags
from ml_collections import config_flags

from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.runs import command
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


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  experiment = _CONFIG.value
  experiment.seed = _SEED.value
  train.check(experiment)
  figures.require_figures()
  _report(experiment)


def _report(experiment) -> None:
  """Trains, captures, and prints and writes what the codecs do."""
  from kaiju_jax.experiments.studies import codecs
  from kaiju_jax.experiments.studies import gradients
  from kaiju_jax.storage import files
  from kaiju_jax.wire import codecs as wire_codecs

  bits = {codec.name: codec.bits for codec in wire_codecs.CODECS}
  captured = codecs.capture(
    experiment, _STEPS.value, _WORKERS.value, _DTYPE.value
  )
  found, curves = codecs.measure(
    gradients.join(captured, _ACROSS.value), _SEED.value
  )
  written = pathlib.Path(_JSON.value), pathlib.Path(_FIGURE.value)
  for path in written:
    path.parent.mkdir(parents=True, exist_ok=True)
  setting = {
    'config': dataclasses.asdict(experiment),
    'steps': _STEPS.value,
    'workers': _WORKERS.value,
    'gradient_dtype': _DTYPE.value,
    'across': _ACROSS.value,
  }
  qualities = {
    name: {'bits': bits[name], 'quality': kinds}
    for name, kinds in found.items()
  }
  files.write_json(
    written[0], report.plain({'setting': setting, 'codecs': qualities})
  )
  of = f'{_WORKERS.value} workers after {_STEPS.value} steps'
  figures.save(
    codecs.draw(
      curves, f'Gradients of {of}: what arrives (y) of what was sent (x)'
    ),
    written[1],
  )
  table = codecs.qualities(
    f'Codecs on the gradients of {_WORKERS.value} workers, step {_STEPS.value}',
    {name: kinds['all'] for name, kinds in found.items()},
    bits,
  )
  report.Report().add(table).show(written)


if __name__ == '__main__':
  command.run(main)
