r"""Decoding beside `transformers`, on this machine, in one run.

    python -m experiments.benchmarks.decode
    taskset -c 1 python -m experiments.benchmarks.decode --parts=products

One model of about 100 M parameters in the shape of Arcee (squared ReLU without
a gate, one head of keys and values, every layer global), with equal weights on
both sides: `transformers` reads what `interchange` wrote. Prefill and decoding
of a batch, ours in float32 and int8, theirs in float32 and bfloat16, with both
of their caches; our own forward pass without a cache; and a step of an
all-local model behind 2k and behind 32k tokens. Needs the extra `interchange`.

The parts take turns, and each is given by its least time over all turns:
machines are shared, and what disturbs only adds.

The part `products` stands alone and says what bounds a step on a CPU: products
of a few rows with a weight, with the head's table, and of attention, beside
`paged_decode` (`experiments/benchmarks/parts/product_times.py`).
"""

import os
import pathlib
import tempfile

from absl import flags

from kaiju_jax.experiments.benchmarks.load_test import peer_model
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.reporting import report
from kaiju_jax.runs import command

_BATCH = flags.DEFINE_integer('batch', 8, 'Rows.', 1)
_LENGTH = flags.DEFINE_integer('length', 2048, 'Tokens of a prompt.', 1)
_STEPS = flags.DEFINE_integer('steps', 16, 'Decoding steps in a run.', 1)
_TURNS = flags.DEFINE_integer('turns', 2, 'How often every part runs.', 1)
_CHUNK = flags.DEFINE_integer('chunk', 2048, 'Tokens of a prefill call.', 1)
_LAYERS = flags.DEFINE_integer('layers', 12, 'Layers of the model.', 1)
_FAR = flags.DEFINE_integer(
  'far', 32_768, 'Context of the all-local model beside --length.', 1
)
_ALL = 'peers', 'ours', 'uncached', 'local', 'products'
_PARTS = flags.DEFINE_list('parts', list(_ALL[:-1]), 'What to run.')


def model(**changes) -> model_config.ModelConfig:
  """Returns the model: 97 M parameters with twelve layers."""
  defaults = {
    'num_layers': _LAYERS.value,
    'max_length': max(_LENGTH.value, _FAR.value) + _STEPS.value,
  }
  return peer_model.config(**(defaults | changes))


def main(argv):
  command.check(argv)
  parts = command.choose(_PARTS, _ALL)
  if 'products' in parts:
    from kaiju_jax.experiments.benchmarks.parts import product_times

    product_times.report(_TURNS.value)
  if set(parts) - {'products'}:
    _compare(parts)


def _compare(wanted) -> None:
  """Prints the table of prefill and steps."""
  # Threads of torch that wait by spinning would slow down ours, and theirs too
  # where others are at work; it is read when torch is imported.
  os.environ.setdefault('OMP_WAIT_POLICY', 'passive')
  # Imported here, so that --help is instant.
  from kaiju_jax.experiments.benchmarks.parts import decode_speed
  from kaiju_jax.model import transformer
  from kaiju_jax.training import state

  config = model()
  int8 = model(quantization=quantization_config.QuantizationConfig())
  params = state.init_params(transformer.Transformer(config), 0)
  shape = _BATCH.value, _LENGTH.value

  def ours(config, batch=shape[0], length=shape[1]):
    measured = decode_speed.times(
      params,
      config,
      batch,
      length,
      steps=_STEPS.value,
      runs=1,
      chunk=_CHUNK.value,
    )
    return measured.prefill, measured.step

  parts = {}
  if 'peers' in wanted:
    parts |= _peers(params, config, *shape)
  if 'ours' in wanted:
    parts['ours, float32'] = lambda: ours(config)
    parts['ours, int8'] = lambda: ours(int8)
  if 'uncached' in wanted:
    parts['float32 without a cache'] = lambda: (
      (),
      decode_speed.time_uncached(params, config, *shape, 1),
    )
  if 'local' in wanted:
    local = model(period=0, quantization=int8.quantization)
    for length in _LENGTH.value, _FAR.value:
      parts[f'all local, int8, 1 × {length:,}'] = lambda length=length: ours(
        local, 1, length
      )
  least = {name: [float('inf')] * 2 for name in parts}
  for turn in range(_TURNS.value):
    for name, run in parts.items():
      for place, seconds in enumerate(run()):
        least[name][place] = min(least[name][place], *seconds, float('inf'))
      seconds = ', '.join(f'{x:.4f} s' for x in least[name])
      print(f'turn {turn}: {name}: {seconds}')
  report.Report().add(_table(least)).show()


def _peers(params, config, batch: int, length: int):
  from kaiju_jax.experiments.benchmarks.parts import transformers_speed
  from kaiju_jax.interchange import hugging_face

  folder = pathlib.Path(tempfile.mkdtemp()) / 'model'
  hugging_face.write(folder, params, config)

  def peer(dtype: str, cache: str):
    measured = transformers_speed.times(
      folder,
      batch,
      length,
      dtype=dtype,
      cache=cache,
      steps=_STEPS.value,
      runs=1,
    )
    return measured.prefill, measured.step

  return {
    f'transformers, {dtype}, {cache}': lambda d=dtype, c=cache: peer(d, c)
    for dtype in ('float32', 'bfloat16')
    for cache in transformers_speed.CACHES
  }


def _table(least):
  theirs = [
    min(
      (x[place] for name, x in least.items() if name.startswith('transf')),
      default=float('nan'),
    )
    for place in (0, 1)
  ]
  rows = []
  for name, measured in least.items():
    # Other rows are other work.
    is_peer = name.startswith(('transformers', 'ours'))
    prefill, step = theirs if is_peer else (None, None)
    rows.append(
      (name, *_cells(measured[0], prefill, 1), *_cells(measured[1], step, 1e3))
    )
  return report.Table(
    rows,
    ('part', 'prefill, s', '×', 'step, ms', '×'),
    f'Batch {_BATCH.value} × {_LENGTH.value:,} tokens; least of'
    f' {_TURNS.value} turns; × is against the fastest of transformers',
  )


def _cells(seconds: float, theirs: float | None, unit: float) -> list[str]:
  if seconds == float('inf'):
    return ['', '']
  ratio = '' if theirs is None else f'{theirs / seconds:.2f}'
  return [f'{unit * seconds:,.2f}', ratio]


if __name__ == '__main__':
  command.run(main)
