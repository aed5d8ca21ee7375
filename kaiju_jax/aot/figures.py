"""Collects a compiled step's figures as plain numbers that JSON can hold."""

from typing import Any

from kaiju_jax.aot import audit
from kaiju_jax.aot import build
from kaiju_jax.aot import devices as devices_lib
from kaiju_jax.aot import flags
from kaiju_jax.aot.hlo import collectives as collectives_lib
from kaiju_jax.aot.hlo import loops
from kaiju_jax.aot.hlo import matmuls as matmuls_lib
from kaiju_jax.costs import accelerator as accelerator_lib
from kaiju_jax.costs import footprint
from kaiju_jax.costs import links
from kaiju_jax.costs import training_memory
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import step as step_lib

# Collectives whose result has fewer bytes (scales, norms, losses) have a table
# of their own.
SMALL = 2**20
# The share of a device's memory that a step may take. NCCL, cuBLAS and the
# context need the remaining part; the compiler's figures leave them out.
_SHARE = 0.9
# Bytes per parameter: the f32 master and Adam's two moments.
_STATE_BYTES = 12


def compile_step(
  experiment: experiment_lib.Experiment,
  accelerator: accelerator_lib.Accelerator,
  mesh_config: sharding_config.MeshConfig,
) -> dict[str, Any]:
  """Compiles an experiment's step and returns the compiler's figures.

  Raises:
    devices.MissingPlugin, ValueError: see `devices.find` and `flags.check`.
  """
  devices = devices_lib.find(accelerator)
  flags.check(accelerator)
  mesh = mesh_lib.make(mesh_config, devices)
  program = build.build(
    step_lib.make(experiment, mesh),
    step_lib.abstract(experiment, mesh),
    accelerator.flags,
  )
  found = build.collectives(program, mesh)
  multiplied = build.matmuls(program)
  memory = program.memory
  model = experiment.model
  state = (
    _STATE_BYTES * footprint.count(footprint.parameters(model)) / mesh.size
  )
  if model.quantization.wire_weights == 'ternary':
    state += training_memory.replica_codes(model, mesh_config.tensor)
  figures = {
    'lower_seconds': program.lower_seconds,
    'compile_seconds': program.compile_seconds,
    'argument_bytes': memory.arguments,
    'temporary_bytes': memory.temporary,
    'aliased_bytes': memory.aliased,
    'needed_bytes': memory.needed,
    'device_bytes': accelerator.chip.hbm_bytes,
    'state_bytes': state,
    'wire': _wire(
      [x for x in found if x.result_bytes >= SMALL], accelerator, mesh_config
    ),
    'small': _small(found),
    'matmuls': matmuls_lib.totals(multiplied),
    'widened': sorted({x.op_name for x in multiplied if x.is_widened}),
    'kernels': matmuls_lib.kernels(program.module),
    'unread_loops': len(loops.executions(program.module).unread),
    'unsure_collectives': sum(not x.is_sure for x in found),
    'complaints': program.complaints,
    'audit': audit.problems(found, experiment, mesh_config),
  }
  figures['problems'] = _problems(figures)
  return figures


def _wire(found, accelerator, mesh) -> list[dict[str, Any]]:
  rows = []
  for rare in (False, True):
    group = [x for x in found if _is_rare(x) == rare]
    for key, (calls, sent) in collectives_lib.totals(group).items():
      kind, dtype, axes = key
      rows.append(
        {
          'kind': kind,
          'dtype': dtype,
          'axes': list(axes),
          'rare': rare,
          'calls': calls,
          'sent_bytes': sent,
        }
      )
      if accelerator.chip.matmul_bf16:
        names = [axis.partition(' ')[0] for axis in axes]
        rows[-1]['seconds'] = sum(
          x.times
          * links.seconds(kind, x.result_bytes, names, accelerator, mesh)
          for x in group
          if (x.kind, x.dtype, x.axes) == key
        )
  return rows


def _small(found) -> list[dict[str, Any]]:
  groups = {}
  for x in found:
    if x.result_bytes < SMALL:
      key = x.kind, x.dtype, x.axes, _is_rare(x)
      groups.setdefault(key, []).append(x)
  return [
    {
      'kind': kind,
      'dtype': dtype,
      'axes': list(axes),
      'rare': rare,
      'calls': sum(x.times for x in group),
      'sent_bytes': sum(x.total for x in group),
      'largest': max((x.size, x.shape) for x in group)[1],
    }
    for (kind, dtype, axes, rare), group in groups.items()
  ]


def _is_rare(x: collectives_lib.Collective) -> bool:
  """Returns whether x is in a branch: ternary events, checksums, healing."""
  return '/cond/branch_' in x.op_name


def _problems(figures) -> list[str]:
  problems = [f'the compiler says: {line}' for line in figures['complaints']]
  problems += [f'on the wire: {line}' for line in figures['audit']]
  if figures['needed_bytes'] > _SHARE * figures['device_bytes']:
    problems.append(f'needs more than {_SHARE:.0%} of the device.')
  if figures['aliased_bytes'] < 0.99 * figures['state_bytes']:
    problems.append('the state is not donated: its memory counts twice.')
  if figures['widened']:
    problems.append('int8 codes are multiplied as something wider.')
  if figures['unsure_collectives']:
    problems.append(
      'collectives are in loops whose trip count could not be read.'
    )
  return problems
