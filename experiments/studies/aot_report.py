"""Reports what the compiler says of a step on a slice that is not here."""

import functools
import os
import pathlib
from typing import Any

from kaiju_jax import tpu_gpu_configs
from kaiju_jax.aot import tables as aot_tables
from kaiju_jax.costs import mesh_decoding
from kaiju_jax.data import config as data_config
from kaiju_jax.experiments.studies import plan_settings as settings_lib
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import presets
from kaiju_jax.reporting import report
from kaiju_jax.runs import train
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.storage import files
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import fit
from kaiju_jax.training import progress

UNITS = 'MXU', 'VALU', 'XLU', 'EUP', 'VLOAD', 'VSTORE'


def run(settings: settings_lib.AotReport) -> bool:
  """Compiles, prints and writes; returns whether the step has no problem.

  Raises:
    ImportError: the compiler is not installed.
    OSError, ValueError: the slice, mesh or experiment is wrong.
  """
  accelerator = tpu_gpu_configs.load(settings.accelerator)
  mesh = sharding_config.MeshConfig(
    fsdp=settings.fsdp or accelerator.devices // (settings.tensor or 1),
    tensor=settings.tensor or accelerator.devices // (settings.fsdp or 1),
  )
  if settings.fsdp is None and settings.tensor is None:
    mesh = accelerator.mesh
  if mesh.devices != accelerator.devices and settings.fsdp and settings.tensor:
    raise ValueError(
      f'mesh.fsdp={mesh.fsdp} × mesh.tensor={mesh.tensor} is {mesh.devices}'
      f' devices, but {accelerator.name} has {accelerator.devices}.'
    )
  experiment = _experiment(settings, mesh)
  train.check(experiment)
  fit.check(experiment, mesh)
  heading = aot_tables.heading(experiment, accelerator, mesh)
  report.Report().say(heading).show()
  page = report.Report()

  figures = {}
  if settings.compile:
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
  _write(settings, figures)
  return not figures.get('problems')


def _experiment(
  settings: settings_lib.AotReport, mesh: sharding_config.MeshConfig
) -> experiment_lib.Experiment:
  if settings.config is not None:
    return settings.config
  model = presets.preset(settings.preset, settings.arm)
  return experiment_lib.Experiment(
    model=model,
    data=data_config.DataConfig(
      length=min(settings.length, model.max_length),
      batch=settings.rows or mesh.fsdp,
      microbatches=settings.microbatches,
    ),
  )


def show_decoding(settings: settings_lib.AotReport) -> bool:
  """Prints and writes decoding on a slice: by arithmetic, and as compiled.

  Returns whether the compiled step has no problem.

  Raises:
    ImportError: the compiler is not installed.
    OSError, ValueError: the slice is wrong, or cannot split the model.
  """
  accelerator = tpu_gpu_configs.load(settings.accelerator)
  model = presets.preset(settings.preset, settings.arm)
  figures = aot_tables.plan_decoding(model, accelerator)
  page = report.Report()
  page.say(
    f'{settings.preset} on {accelerator.name}: {accelerator.devices} ×'
    f' {accelerator.chip.name}\n'
  )
  page.add(*aot_tables.tabulate_decoding(figures, model, accelerator))
  page.show()
  compiled = {}
  if settings.compile:
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    from kaiju_jax.aot import decode

    block = len(layers_lib.repeating_block(model.layers()))
    model.num_layers = settings.layers or block
    rows = settings.rows or mesh_decoding.ROWS
    with progress.status('compiling'):
      compiled = decode.compile_step(model, accelerator, rows)
    page = report.Report()
    page.add(*aot_tables.tabulate_compiled(compiled, model, accelerator))
    page.show()
  _write(settings, {'decoding': figures, 'compiled': compiled})
  return not compiled.get('problems')


def _write(settings: settings_lib.AotReport, figures: dict[str, Any]) -> None:
  """Writes the figures where `--json` says."""
  if settings.json:
    path = pathlib.Path(settings.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, figures)


def show_kernels(settings: settings_lib.AotReport) -> None:
  """Compiles a TPU's attention kernels, and prints each stretch of their code.

  Raises:
    ImportError: the compiler is not installed.
    OSError, ValueError: the slice or a size is wrong.
  """
  from kaiju_jax.aot import attention_kernels
  from kaiju_jax.aot import schedule

  make = functools.partial(
    attention_kernels.alone,
    settings.heads,
    settings.window,
    settings.kind,
    tiles=(settings.rows, settings.keys) if settings.rows else None,
  )
  for name, stretches in schedule.read(make, settings.accelerator).items():
    if not any(stretch.busy['MXU'] for stretch in stretches):
      continue
    print(f'{name}\n  cycles ' + ' '.join(f'{unit:>6}' for unit in UNITS))
    for stretch in stretches:
      shares = ' '.join(f'{stretch.busy[unit]:6.0%}' for unit in UNITS)
      print(f'  {stretch.bundles:6} {shares}')
