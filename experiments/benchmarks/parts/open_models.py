"""Compares open models with `transformers` and llama.cpp, in one run.

All sides read one folder: ours by the arms of `serve --int8`, `transformers` in
float32 and bfloat16 with both of its caches, and llama.cpp in Q8_0 where it is
installed.
"""

from collections.abc import Callable
import dataclasses
import functools
import importlib.util
import pathlib
import sys
import time

import jax
import numpy as np

from kaiju_jax.costs import footprint
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.experiments.benchmarks.parts import decode_speed
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.reporting import report
from kaiju_jax.runs import load
from kaiju_jax.runs import play


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings of a comparison.

  Attributes:
    vocabulary: tokens of the models' vocabulary.
    batch: rows.
    length: tokens of a prompt.
    steps: decoding steps in a turn.
    turns: how often every side runs.
    arms: ours.
    clock: returns seconds.
  """

  vocabulary: int
  batch: int = 1
  length: int = 128
  steps: int = 8
  turns: int = 4
  arms: tuple[str, ...] = ('none', 'weights', 'all')
  clock: Callable[[], float] = time.perf_counter

  @property
  def room(self) -> int:
    """The tokens of a prompt, its steps, and one more."""
    return self.length + self.steps + 1


def ours(folder: pathlib.Path, arm: str, batch: int, length: int):
  """Returns a decoder of one arm of the folder's model, for so many tokens."""
  kv = 'none' if arm == 'none' else 'int8'
  loaded = load.from_anywhere(
    folder, quantization=quantization_config.for_serving(arm, kv)
  )
  return play.decoder(loaded, None, rows=batch, length=length)


def sides(
  folder: pathlib.Path, settings: Settings
) -> dict[str, Callable[[], tuple]]:
  """Returns what times one prefill and the median step of each side."""
  from kaiju_jax.experiments.benchmarks.parts import transformers_speed

  batch, length, steps = settings.batch, settings.length, settings.steps
  clock = settings.clock
  out = {}
  for dtype in 'float32', 'bfloat16':
    model = transformers_speed.read(folder, dtype)
    for cache in transformers_speed.CACHES:
      out[f'transformers, {dtype}, {cache} cache'] = transformers_speed.runner(
        model, batch, length, cache, steps, clock
      )
  if all(map(importlib.util.find_spec, ('gguf', 'llama_cpp'))):
    from kaiju_jax.experiments.benchmarks.load_test import llama_serving

    llama_serving.write(folder / 'model.gguf', folder, 'int8')
    out['llama.cpp, Q8_0'] = llama_serving.runner(
      folder / 'model.gguf', batch, length, steps, clock
    )
  for arm in settings.arms:
    out[f'ours, int8={arm}'] = decode_speed.runner(
      ours(folder, arm, batch, settings.room), length, steps, clock=clock
    )
  return out


def measure_speed(folder: pathlib.Path, settings: Settings) -> None:
  """Prints tokens per second of prefill and of a greedy step, by side."""
  runs = sides(folder, settings)
  batch = settings.batch
  least = {}
  for run in runs.values():  # Compiles.
    run()
  for turn in range(settings.turns):
    for name, run in runs.items():
      seconds = run()
      least[name] = tuple(map(min, least.get(name, seconds), seconds))
      print(f'turn {turn}: {name}: {seconds}', file=sys.stderr, flush=True)
  best = [
    min(x[place] for name, x in least.items() if name.startswith('transf'))
    for place in range(2)
  ]
  rows = [
    (
      name,
      f'{batch * settings.length / prefill:.0f}',
      f'{best[0] / prefill:.2f}',
      f'{batch / step:.1f}',
      f'{best[1] / step:.2f}',
    )
    for name, (prefill, step) in least.items()
  ]
  columns = '', 'prefill, tokens/s', '×', 'decode, tokens/s', '×'
  report.Report().table(rows, columns).show(as_markdown=True)


def measure_quality(folder: pathlib.Path, settings: Settings) -> None:
  """Prints how far our arms are from `transformers` in float32."""
  import torch

  from kaiju_jax.experiments.benchmarks.parts import transformers_speed

  length = min(settings.length, 64)
  vocab_size = settings.vocabulary
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

  rows = []
  wanted_LV = np.asarray(jax.nn.log_softmax(theirs_LV))
  for arm in settings.arms:
    decoder = ours(folder, arm, 1, settings.room)
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
    rows.append(
      (arm, f'{apart:.1e}', f'{kl:.1e}', f'{size / 1e6:.0f}', f'{kv:,}')
    )
  report.Report().table(
    rows,
    (
      *('arm', 'largest difference', 'KL, nats', 'weights, MB'),
      'KV bytes/token',
    ),
  ).show(as_markdown=True)


def _kv_bytes(config) -> int:
  return round(footprint.kv_caches(config, 1)[0].per_token)


def measure_draw(folder: pathlib.Path, settings: Settings) -> None:
  """Prints which part of a step is spent on drawing a token."""
  batch, clock = settings.batch, settings.clock
  run = decode_speed.runner(
    ours(folder, 'all', batch, settings.room),
    settings.length,
    settings.steps,
    clock=clock,
  )
  rng = np.random.default_rng(0)
  shape = batch, settings.vocabulary
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
  for turn in range(1 + settings.turns):
    for name, kind in kinds.items():
      drawing = sampling.settings([kind] * batch)
      for _ in range(settings.steps):
        started = clock()
        jax.block_until_ready(draw(arrays[0], drawing, *arrays[1:]))
        if turn:
          least[name] = min(least[name], clock() - started)
    step = run()[1]
    if turn:
      least['step'] = min(least['step'], step)
  rows = [
    (name, f'{1e3 * seconds:.2f}', f'{seconds / least["step"]:.1%}')
    for name, seconds in least.items()
  ]
  columns = 'draw', 'ms', 'of a greedy step'
  report.Report().table(rows, columns).show(as_markdown=True)
