r"""Open models beside `transformers` and llama.cpp, in one run.

    python -m experiments.benchmarks.open_models --shape=smollm2-135m
    python -m experiments.benchmarks.open_models --shape=qwen3-0.6b --batch=8
    python -m experiments.benchmarks.open_models --parts=quality

A folder of a real model's shape with random bfloat16 weights, which all sides
read: ours by the arms of `serve --int8`, `transformers` in float32 and bfloat16
with both of its caches, and llama.cpp in Q8_0. `quality` compares our arms with
`transformers` in float32: logits, KL, and memory. `speed` gives tokens per
second of prefill and of a greedy step, which the parts measure in turns; each
has its least time over all turns, because what disturbs only adds. `draw` says
which part of our step is spent on drawing a token with top-k and top-p.

Needs the extra `interchange`; llama.cpp needs llama-cpp-python and gguf too,
and is left out where they are not installed.
"""

from collections.abc import Callable
import functools
import importlib.util
import os
import pathlib
import sys
import time

from absl import flags

from kaiju_jax.runs import command
from kaiju_jax.runs.benchmarks import open_shapes

_ALL = 'quality', 'speed', 'draw'

_SHAPE = flags.DEFINE_enum(
  'shape', 'smollm2-135m', list(open_shapes.SHAPES), 'Whose.'
)
_BATCH = flags.DEFINE_integer('batch', 1, 'Rows.', 1)
_LENGTH = flags.DEFINE_integer('length', 128, 'Tokens of a prompt.', 1)
_STEPS = flags.DEFINE_integer('steps', 8, 'Decoding steps in a turn.', 1)
_TURNS = flags.DEFINE_integer('turns', 4, 'How often every side runs.', 1)
_CLOCK = flags.DEFINE_enum(
  'clock',
  'wall',
  ['wall', 'processor'],
  'Seconds of what; of the processor where others use the machine too.',
)
_CLOCKS = {'wall': time.perf_counter, 'processor': time.process_time}
_ARMS = flags.DEFINE_list('arms', ['none', 'weights', 'all'], 'Of ours.')
_PARTS = flags.DEFINE_list('parts', list(_ALL), 'What to run.')


def ours(folder, arm: str, batch: int):
  """Returns a decoder of the folder's model in one arm."""
  from kaiju_jax.quantization import config as quantization_config
  from kaiju_jax.runs import load

  kv = 'none' if arm == 'none' else 'int8'
  loaded = load.from_anywhere(
    folder, quantization=quantization_config.for_serving(arm, kv)
  )
  length = _LENGTH.value + _STEPS.value + 1
  return load.decoder(loaded, None, rows=batch, length=length)


def sides(folder: pathlib.Path) -> dict[str, Callable[[], tuple]]:
  """Returns what times one prefill and the median step of each side."""
  from kaiju_jax.quantization import config as quantization_config
  from kaiju_jax.runs.benchmarks import decode_speed
  from kaiju_jax.runs.benchmarks import transformers_speed

  batch, length, steps = _BATCH.value, _LENGTH.value, _STEPS.value
  clock = _CLOCKS[_CLOCK.value]
  out = {}
  for dtype in 'float32', 'bfloat16':
    model = transformers_speed.read(folder, dtype)
    for cache in transformers_speed.CACHES:
      out[f'transformers, {dtype}, {cache} cache'] = transformers_speed.runner(
        model, batch, length, cache, steps, clock
      )
  if all(map(importlib.util.find_spec, ('gguf', 'llama_cpp'))):
    from kaiju_jax.runs.load_test import llama_serving

    llama_serving.write(folder / 'model.gguf', folder, 'int8')
    out['llama.cpp, Q8_0'] = llama_serving.runner(
      folder / 'model.gguf', batch, length, steps, clock
    )
  for arm in command.choose(_ARMS, quantization_config.ARMS):
    out[f'ours, int8={arm}'] = decode_speed.runner(
      ours(folder, arm, batch), length, steps, clock=clock
    )
  return out


def _speed(folder) -> None:
  runs = sides(folder)
  batch = _BATCH.value
  least = {}
  for run in runs.values():  # Compiles.
    run()
  for turn in range(_TURNS.value):
    for name, run in runs.items():
      seconds = run()
      least[name] = tuple(map(min, least.get(name, seconds), seconds))
      print(f'turn {turn}: {name}: {seconds}', file=sys.stderr, flush=True)
  best = [
    min(x[place] for name, x in least.items() if name.startswith('transf'))
    for place in range(2)
  ]
  print(
    '| | prefill, tokens/s | × | decode, tokens/s | × |\n|---|---|---|---|---|'
  )
  for name, (prefill, step) in least.items():
    print(
      f'| {name} | {batch * _LENGTH.value / prefill:.0f} |'
      f' {best[0] / prefill:.2f} | {batch / step:.1f} | {best[1] / step:.2f} |'
    )


def _quality(folder) -> None:
  import jax
  import numpy as np
  import torch

  from kaiju_jax.decoding.device import extend
  from kaiju_jax.quantization import config as quantization_config
  from kaiju_jax.runs.benchmarks import transformers_speed

  length = min(_LENGTH.value, 64)
  vocab_size = open_shapes.SHAPES[_SHAPE.value]['vocab_size']
  rng = np.random.default_rng(1)
  tokens_BL = rng.integers(0, vocab_size, (1, length), np.int32)
  with torch.inference_mode():
    model = transformers_speed.read(folder, 'float32')
    theirs_LV = model(torch.from_numpy(tokens_BL).long()).logits[0].numpy()
  del model

  def call(network, params, cache, rings, row_B, tokens_BL):
    count_B = np.full(1, length, np.int32)
    hidden_BLD, cache = extend.text(
      network, params, cache, rings, row_B, tokens_BL, count_B
    )
    return extend.logits(network, params, hidden_BLD), cache

  print(
    '| arm | largest difference | KL, nats | weights, MB | KV bytes/token |'
  )
  print('|---|---|---|---|---|')
  wanted_LV = np.asarray(jax.nn.log_softmax(theirs_LV))
  for arm in command.choose(_ARMS, quantization_config.ARMS):
    decoder = ours(folder, arm, 1)
    run = decoder.jit(
      functools.partial(call, decoder.network), donate_argnums=1
    )
    row = decoder.open()
    row_B = np.array([row], np.int32)
    logits_LV = decoder.run(run, row_B, tokens_BL, appends={row: length})[0]
    logits_LV = np.asarray(logits_LV)
    apart = np.abs(logits_LV - theirs_LV).max() / np.abs(theirs_LV).max()
    own_LV = np.asarray(jax.nn.log_softmax(logits_LV))
    kl = (np.exp(wanted_LV) * (wanted_LV - own_LV)).sum(-1).mean()
    size = sum(x.nbytes for x in jax.tree.leaves(decoder.params))
    kv = _kv_bytes(decoder.config)
    print(f'| {arm} | {apart:.1e} | {kl:.1e} | {size / 1e6:.0f} | {kv:,} |')


def _kv_bytes(config) -> int:
  from kaiju_jax.costs import footprint

  return round(footprint.kv_caches(config, 1)[0].per_token)


def _draw(folder) -> None:
  import jax
  import numpy as np

  from kaiju_jax.decoding.requests import sampling
  from kaiju_jax.runs.benchmarks import decode_speed

  batch = _BATCH.value
  clock = _CLOCKS[_CLOCK.value]
  run = decode_speed.runner(
    ours(folder, 'all', batch), _LENGTH.value, _STEPS.value, clock=clock
  )
  rng = np.random.default_rng(0)
  shape = batch, open_shapes.SHAPES[_SHAPE.value]['vocab_size']
  logits_BV = rng.normal(0, 3, shape).astype(np.float32)
  kinds = {
    'greedy': sampling.Sampling(temperature=0),
    'top_k=20, top_p=0.95': sampling.Sampling(0.6, 20, 0.95),
    'top_p=0.9': sampling.Sampling(0.6, top_p=0.9),
    'without a filter': sampling.Sampling(1.0),
  }
  index_B = np.zeros(batch, np.int32)
  draw = jax.jit(sampling.draw)
  seen_BV = np.zeros(shape, bool)
  least = dict.fromkeys(('step', *kinds), float('inf'))
  arrays = jax.device_put((logits_BV, index_B, seen_BV))
  for turn in range(1 + _TURNS.value):
    for name, kind in kinds.items():
      settings = sampling.settings([kind] * batch)
      for _ in range(_STEPS.value):
        started = clock()
        jax.block_until_ready(draw(arrays[0], settings, *arrays[1:]))
        if turn:
          least[name] = min(least[name], clock() - started)
    step = run()[1]
    if turn:
      least['step'] = min(least['step'], step)
  print('| draw | ms | of a greedy step |\n|---|---|---|')
  for name, seconds in least.items():
    share = seconds / least['step']
    print(f'| {name} | {1e3 * seconds:.2f} | {share:.1%} |')


def main(argv):
  command.check(argv)
  parts = command.choose(_PARTS, _ALL)
  # Threads that wait by spinning slow down all others.
  os.environ.setdefault('OMP_WAIT_POLICY', 'passive')
  print(f'{_SHAPE.value}, {_BATCH.value} × {_LENGTH.value} tokens', flush=True)
  with open_shapes.provide(_SHAPE.value) as folder:
    for part, run in (
      ('quality', _quality),
      ('speed', _speed),
      ('draw', _draw),
    ):
      if part in parts:
        run(folder)


if __name__ == '__main__':
  command.run(main)
