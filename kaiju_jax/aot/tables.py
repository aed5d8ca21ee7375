"""Makes the tables of `experiments.aot_report`; imports no jax."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

from kaiju_jax.costs import accelerator as accelerator_lib
from kaiju_jax.costs import footprint
from kaiju_jax.costs import mesh_decoding
from kaiju_jax.costs import step_time
from kaiju_jax.model import config as model_config
from kaiju_jax.reporting import report
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.training import experiment as experiment_lib


def heading(
  experiment: experiment_lib.Experiment,
  accelerator: accelerator_lib.Accelerator,
  mesh: sharding_config.MeshConfig,
) -> str:
  """Returns the line above the tables: slice, mesh, rows and tokens."""
  data = experiment.data
  tokens = data.batch * data.length * data.microbatches
  return (
    f'{accelerator.name}: {accelerator.devices:,} × {accelerator.chip.name},'
    f' fsdp {mesh.fsdp} × tensor {mesh.tensor}; {data.microbatches} ×'
    f' {data.batch} rows of {data.length:,}, {tokens:,} tokens per step\n'
  )


def tabulate_step(
  figures: Mapping[str, Any], accelerator: accelerator_lib.Accelerator
) -> Iterator[Any]:
  """Yields the tables of a compiled step, and a line per problem."""
  yield _compilation(figures)
  yield _wire(figures['wire'])
  yield _small(figures['small'])
  yield _matmuls(figures, accelerator.chip)
  for problem in figures['problems']:
    yield f'[bold red]problem:[/] {problem}'


def step_times(
  experiment: experiment_lib.Experiment,
  accelerator: accelerator_lib.Accelerator,
  mesh: sharding_config.MeshConfig,
) -> dict[str, dict[str, float]]:
  """Returns {arm: its seconds by part and with each overlap of `Seconds`}."""
  data = experiment.data
  table = step_time.table(
    experiment.model,
    accelerator,
    mesh,
    data.batch,
    data.length,
    data.microbatches,
  )
  return {
    name: dataclasses.asdict(seconds)
    | {
      'apart': seconds.apart,
      'overlapped': seconds.overlapped,
      'hidden': seconds.hidden,
    }
    for name, seconds in table.items()
  }


def tabulate_model(times: Mapping[str, Mapping[str, float]]) -> Iterator[Any]:
  """Yields the time model's table and the sentences of `verdict`."""
  base = times['bf16']
  rows = [
    (
      name,
      *(f'{arm[part]:.3f}' for part in ('matmul', 'fsdp', 'tensor')),
      *(
        f'{arm[part]:.3f} {_faster(base[part], arm[part]):>4}'
        for part in ('apart', 'overlapped')
      ),
    )
    for name, arm in times.items()
  ]
  yield report.Table(
    rows,
    ('', 'matmuls', 'fsdp', 'tensor', 'sum', 'overlap'),
    'A step by arithmetic, seconds',
    'sum: nothing overlaps; overlap: weights travel beside the matmuls; +%:'
    ' steps per second, against bf16',
    look='light',
  )
  yield from verdict(times)


def verdict(times: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
  """Yields sentences on where a step gets faster and where it does not."""
  bf16, forward = times['bf16'], times['int8 forward']
  both, squinch = times['int8 both ways'], times['int8 forward + Squinch']
  is_bound = bf16['fsdp'] > bf16['matmul'] + bf16['tensor']
  yield (
    'Beside the sources’ 20–30 %: the matmuls alone are'
    f' {_faster(bf16["matmul"], forward["matmul"])} with an int8 forward pass'
    f' (recomputed too), {_faster(bf16["matmul"], both["matmul"])} with int8'
    ' input gradients. With the sequence’s wire, where it enters as codes'
    f' ({_faster(bf16["tensor"], forward["tensor"])}),'
    f' {_faster(*(x["matmul"] + x["tensor"] for x in (bf16, forward)))} and'
    f' {_faster(*(x["matmul"] + x["tensor"] for x in (bf16, both)))}.'
  )
  yield (
    f'int8 gathers take {bf16["fsdp"] - forward["fsdp"]:.3f} s off the wire of'
    ' weights, which'
    + (
      ' is the bottleneck here: more tokens per step would hide it.'
      if is_bound
      else ' the matmuls hide.'
    )
  )
  saved = forward['fsdp'] - squinch['fsdp']
  if saved < 0:
    yield (
      f'Squinch adds {-saved:.3f} s to it: an all-to-all sends fewer bytes, but'
      ' a bf16 reduce-scatter adds up on the way (within a node, or along a'
      ' torus) and crosses the narrow wire once.'
    )
  else:
    yield f'Squinch takes {saved:.3f} s more off it.'
  ternary = times['ternary updates + Squinch']
  gathered = squinch['fsdp'] - (ternary['fsdp'] - ternary['update'])
  yield (
    f'Ternary updates are {ternary["update"]:.3f} s per step, instead of'
    f' {gathered:.3f} s of int8 gathers; each device then holds the weights of'
    ' its tensor rank as codes.'
  )


def plan_decoding(
  config: model_config.ModelConfig, accelerator: accelerator_lib.Accelerator
) -> dict[str, dict[str, Any]]:
  """Returns {arm: its figures} of decoding on all devices of a slice.

  Raises ValueError: see `model_config.check_tensor` and `MeshPlan.seconds`; the
    slice is one device.
  """
  count = accelerator.devices
  if count == 1:
    raise ValueError(
      f'accelerator={accelerator.name!r}: must have at least two devices, which'
      ' share the cache; it has one.'
    )
  figures = {}
  for arm in mesh_decoding.ARMS:
    heads = arm.kv_heads or 1
    if config.num_heads % heads or (heads % count and count % heads):
      continue
    plan = mesh_decoding.MeshPlan(config, accelerator, arm)
    figures[arm.name] = {
      'about': arm.about,
      'page': plan.page,
      'weight_bytes': footprint.weight_bytes(plan.model, plan.devices),
      'free_bytes': plan.free,
      'texts': {length: plan.texts(length) for length in mesh_decoding.LENGTHS},
      'text_bytes': {
        length: sum(plan.text_bytes(length).values())
        for length in mesh_decoding.LENGTHS
      },
      'tokens': plan.tokens(),
      'wire_bytes': plan.wire(),
      'launches': plan.launches(),
      'seconds': {
        batch: plan.seconds(batch)._asdict() for batch in mesh_decoding.BATCHES
      },
    }
  return figures


def tabulate_decoding(
  figures: Mapping[str, Mapping[str, Any]],
  config: model_config.ModelConfig,
  accelerator: accelerator_lib.Accelerator,
) -> Iterator[Any]:
  """Yields the arms, the tables of `plan_decoding`, and what they guess."""
  for name, found in figures.items():
    yield f'{name:6} {found["about"]}'
  platform = accelerator.chip.platform
  reduced = _two_all_reduces(config, accelerator)
  short, long = mesh_decoding.LENGTHS
  lengths = f'{short:,}', f'{long:,}'
  striped = next(iter(figures.values()))
  memory, speed = [], []
  for name, found in figures.items():
    size = found['text_bytes'][short]
    memory.append(
      (
        name,
        found['page'],
        f'{found["weight_bytes"] / 1e9:.2f}',
        f'{size / 1e6:.2f}',
        f'{size / striped["text_bytes"][short]:.2f}',
        *(f'{found["texts"][length]:,}' for length in (short, long)),
        f'{found["tokens"] / 1e6:,.1f}',
      )
    )
    speed.append(
      (
        name,
        f'{found["wire_bytes"]:,.0f}',
        f'{found["wire_bytes"] / reduced:.2f}',
        f'{found["launches"]:.1f}',
        *(
          f'{1e3 * sum(seconds.values()):.1f}'
          for seconds in found['seconds'].values()
        ),
      )
    )
  yield report.Table(
    memory,
    (
      *('', 'page', 'weights\nGB', f'KV of {lengths[0]}\nMB', '\n÷ S'),
      *(f'texts of\n{length}' for length in lengths),
      f'10⁶ tokens in\n{mesh_decoding.ROWS} texts',
    ),
    'Decoding by arithmetic: memory of one device',
    f'of {mesh_decoding.SHARE:.0%} of the memory, less'
    f' {mesh_decoding.RESERVED[platform] / 1e9:g} GB (our guess); no limit of a'
    ' kernel',
    look='light',
  )
  yield report.Table(
    speed,
    (
      *('', 'bytes per token\nand layer', '÷ two\nall-reduces'),
      'launches\nper layer',
      *(f'ms\n{batch} texts' for batch in mesh_decoding.BATCHES),
    ),
    'Decoding by arithmetic: the wire and the time of a step',
    f'texts of {lengths[0]} tokens; a launch takes'
    f' {1e6 * mesh_decoding.LAUNCH[platform]:g} µs (our guess); nothing was'
    ' timed',
    look='light',
  )
  tokens = mesh_decoding.break_even(config, accelerator)
  yield f'Splitting tokens (S, R) is faster from {tokens:,.0f} per step on.'


def tabulate_compiled(
  figures: Mapping[str, Any],
  config: model_config.ModelConfig,
  accelerator: accelerator_lib.Accelerator,
) -> Iterator[Any]:
  """Yields the tables of `decode.compile_step`, and a line per problem."""
  layers = len(config.layers())
  share = figures['needed_bytes'] / figures['device_bytes']
  given = figures['aliased_bytes'] / figures['page_bytes']
  yield report.Table(
    [
      ('compiled in', f'{figures["compile_seconds"]:.0f} s'),
      *(
        (name, _gib(figures[f'{name}_bytes']))
        for name in ('argument', 'page', 'temporary', 'needed')
      ),
      ("of the device's", f'{_gib(figures["device_bytes"])}, {share:.0%}'),
      ('donated, of pages', f'{given:.1%}'),
      *((f'kernel {name}', n) for name, n in figures['kernels'].items()),
    ],
    ('', ''),
    f'A compiled step of {figures["rows"]} texts and {layers} layers, one'
    ' device',
    look='light',
  )
  reduced = _two_all_reduces(config, accelerator)
  rows = [
    (name, f'{sent:,.0f}', f'{sent / reduced:.3f}')
    for name, sent in figures['wire'].items()
  ]
  total = sum(figures['wire'].values())
  rows.append(('total', f'{total:,.0f}', f'{total / reduced:.3f}'))
  starts = figures['launches']
  counted = ', '.join(f'{n:.1f} {kind}' for kind, n in starts.items())
  yield report.Table(
    rows,
    ('', 'bytes', '÷ two all-reduces'),
    'On the wire: what one device sends per token and layer',
    f'{sum(starts.values()):.1f} launches per layer: {counted}',
    look='light',
    has_total=True,
  )
  for problem in figures['problems']:
    yield f'[bold red]problem:[/] {problem}'


def _two_all_reduces(
  config: model_config.ModelConfig, accelerator: accelerator_lib.Accelerator
) -> float:
  """Returns a device's bytes per token and layer of tensor parallelism."""
  return 8 * config.d_model * (1 - 1 / accelerator.devices)


def _compilation(figures) -> report.Table:
  share = figures['needed_bytes'] / figures['device_bytes']
  given = figures['aliased_bytes'] / figures['state_bytes']
  rows = [
    ('lowered in', f'{figures["lower_seconds"]:.0f} s'),
    ('compiled in', f'{figures["compile_seconds"]:.0f} s'),
    *(
      (name, _gib(figures[f'{name}_bytes']))
      for name in ('argument', 'temporary', 'needed')
    ),
    ("of the device's", f'{_gib(figures["device_bytes"])}, {share:.0%}'),
    ('donated', f'{_gib(figures["aliased_bytes"])}'),
    ('of the f32 state', f'{given:.1%}'),
  ]
  title = 'The compiled step, one device'
  return report.Table(rows, ('', ''), title, look='light')


def _wire(rows: Sequence[Mapping[str, Any]]) -> report.Table:
  cells = []
  for row in rows:
    seconds = row.get('seconds')
    cells.append(
      (
        _kind(row),
        row['dtype'],
        '+'.join(row['axes']),
        f'{row["calls"]:,}',
        f'{row["sent_bytes"] / 1e9:.3f}',
        '' if seconds is None else f'{seconds:.4f}',
      )
    )
  return report.Table(
    cells,
    ('collective', 'dtype', 'axis', 'calls', 'GB', 'seconds'),
    'On the wire: what one device sends per step',
    left=3,
    look='light',
  )


def _small(rows: Sequence[Mapping[str, Any]]) -> report.Table:
  cells = [
    (
      _kind(row),
      row['dtype'],
      '+'.join(row['axes']),
      '×'.join(map(str, row['largest'])) or 'scalar',
      f'{row["calls"]:,}',
      f'{row["sent_bytes"] / 1e6:.3f}',
    )
    for row in sorted(rows, key=lambda row: -row['sent_bytes'])
  ]
  return report.Table(
    cells,
    ('collective', 'dtype', 'axis', 'largest', 'calls', 'MB'),
    'Small ones (results below 1 MiB): scales, norms, the loss',
    left=4,
    look='light',
  )


def _kind(row: Mapping[str, Any]) -> str:
  return f'{row["kind"]}, in some steps' if row['rare'] else row['kind']


def _matmuls(figures, chip) -> report.Table:
  rows = []
  for dtypes, operations in figures['matmuls'].items():
    reach = chip.matmul_int8 if dtypes.startswith('s8×s8') else chip.matmul_bf16
    if dtypes.startswith('f32'):
      reach = 0
    seconds = f'{operations / reach:.4f}' if reach else ''
    rows.append((dtypes, f'{operations / 1e12:.3f}', seconds))
  notes = []
  if figures['unread_loops']:
    notes.append(
      f'{figures["unread_loops"]} loops of attention end where the documents'
      ' end, and count once.'
    )
  widened = len(figures['widened'])
  notes.append(
    f'{widened} matmuls of codes are not int8.'
    if widened
    else 'Every matmul of codes is int8.'
  )
  columns = 'dtypes', '10¹² operations', 'seconds'
  caption = ' '.join(notes)
  return report.Table(
    rows, columns, 'Matmuls, one device', caption, look='light'
  )


def _faster(base: float, seconds: float) -> str:
  return f'{base / seconds - 1:+.0%}' if seconds else 'even'


def _gib(size: float) -> str:
  return f'{size / 2**30:.2f} GiB'
