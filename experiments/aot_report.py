"""What the compiler says of a full-size step on a slice that is not here.

    python -m experiments.aot_report --preset=110b --accelerator=h100_512 \\
        [--json=PATH] [--arm=ternary] [--fsdp=8 --tensor=8] [--nocompile]

Compiles the training step for the accelerator file's devices and prints what
it needs and sends: seconds of compilation, bytes of memory against the
device's, bytes on the wire by collective, dtype and axis, matmuls by dtype.
Beside it stands a model of the step's time by arithmetic, for int8 and Squinch
each switched on and off; `--nocompile` prints that alone.

Facts: bytes, operations, dtypes. Estimates: seconds on the device, from the
figures in `tpu_gpu_configs/chips/`. No accelerator is needed, only its
compiler: pip install 'kaiju_jax[aot-gpu]' or 'kaiju_jax[aot-tpu]'.

Ends with status 1 where the step does not fit, donates nothing, or the compiler
complains.
"""

from collections.abc import Sequence
import json
import os
import pathlib

from absl import app
from absl import flags
from ml_collections import config_flags

from kaiju_jax import tpu_gpu_configs
from kaiju_jax.aot import tables as aot_tables
from kaiju_jax.data import config as data_config
from kaiju_jax.model import presets
from kaiju_jax.reporting import report
from kaiju_jax.runs import command
from kaiju_jax.runs import train
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import fit
from kaiju_jax.training import progress

_PRESET = flags.DEFINE_string(
  'preset', None, f'One of {", ".join(presets.PRESETS)}.'
)
_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'An experiment instead: NAME:ARM, or PATH:ARM.'
)
_ACCELERATOR = flags.DEFINE_string(
  'accelerator', None, 'A slice of tpu_gpu_configs/, such as h100_512.'
)
_JSON = flags.DEFINE_string('json', None, 'File that gets the figures as JSON.')
_ARM = flags.DEFINE_enum(
  'arm',
  'int8',
  presets.ARMS,
  'Variant of a preset: int8 and Squinch, neither, or ternary updates.',
)
_FSDP = flags.DEFINE_integer('fsdp', None, "Instead of the accelerator's.")
_TENSOR = flags.DEFINE_integer('tensor', None, "Instead of the accelerator's.")
_ROWS = flags.DEFINE_integer(
  'rows', None, 'Rows of a microbatch; one per fsdp device by default.'
)
_LENGTH = flags.DEFINE_integer(
  'length', 8192, 'Tokens per row, with a preset.', lower_bound=2
)
_MICROBATCHES = flags.DEFINE_integer(
  'microbatches', 1, 'Microbatches per step, with a preset.', lower_bound=1
)
_COMPILE = flags.DEFINE_bool(
  'compile', True, 'Whether to compile; the time model is printed anyway.'
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _ACCELERATOR)
  if (_PRESET.value is None) == (_CONFIG.value is None):
    raise app.UsageError('exactly one of --preset and --config is needed.')
  command.refuse_beside(_CONFIG, _ARM, _LENGTH, _ROWS, _MICROBATCHES)
  if not _report():
    raise SystemExit(1)


def _report() -> bool:
  accelerator = tpu_gpu_configs.load(_ACCELERATOR.value)
  mesh = sharding_config.MeshConfig(
    fsdp=_FSDP.value or accelerator.devices // (_TENSOR.value or 1),
    tensor=_TENSOR.value or accelerator.devices // (_FSDP.value or 1),
  )
  if _FSDP.value is None and _TENSOR.value is None:
    mesh = accelerator.mesh
  if mesh.devices != accelerator.devices and _FSDP.value and _TENSOR.value:
    raise ValueError(
      f'mesh.fsdp={mesh.fsdp} × mesh.tensor={mesh.tensor} is {mesh.devices}'
      f' devices, but {accelerator.name} has {accelerator.devices}.'
    )
  experiment = _experiment(mesh)
  train.check(experiment)
  fit.check(experiment, mesh)
  heading = aot_tables.heading(experiment, accelerator, mesh)
  report.Report().say(heading).show()
  page = report.Report()

  figures = {}
  if _COMPILE.value:
    # Before jax is imported: the compiler's is another platform.
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    os.environ.setdefault(
      'XLA_FLAGS', accelerator.environment.get('XLA_FLAGS', '')
    )
    from kaiju_jax.aot import figures as aot_figures

    with progress.status('compiling'):
      figures = aot_figures.compile_step(experiment, accelerator, mesh)
    page.add(*aot_tables.tabulate_step(figures, accelerator))
  if accelerator.chip.matmul_bf16:
    figures['model'] = aot_tables.step_times(experiment, accelerator, mesh)
    page.add(*aot_tables.tabulate_model(figures['model']))
  page.show()
  if _JSON.value:
    _write(figures)
  return not figures.get('problems')


def _experiment(mesh: sharding_config.MeshConfig) -> experiment_lib.Experiment:
  if _CONFIG.value is not None:
    return _CONFIG.value
  model = presets.preset(_PRESET.value, _ARM.value)
  return experiment_lib.Experiment(
    model=model,
    data=data_config.DataConfig(
      length=min(_LENGTH.value, model.max_length),
      batch=_ROWS.value or mesh.fsdp,
      microbatches=_MICROBATCHES.value,
    ),
  )


def _write(figures) -> None:
  path = pathlib.Path(_JSON.value)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(figures, indent=1) + '\n')


if __name__ == '__main__':
  command.run(main, ImportError)
