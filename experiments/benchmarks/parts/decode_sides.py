"""The sides of `benchmarks.decode`, which read one folder, and its tables."""

from collections.abc import Callable
import functools
import importlib.util
import pathlib
import time
from typing import Any

import jax
import numpy as np

from kaiju_jax.costs import footprint
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.experiments.benchmarks import harness
from kaiju_jax.experiments.benchmarks.parts import decode_speed
from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.reporting import report
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from kaiju_jax.training import state

_CLOCKS = {'wall': time.perf_counter, 'processor': time.process_time}
Times = Callable[[], tuple[float, float]]


def ours(folder: pathlib.Path, arm: str, batch: int, length: int):
  """Returns a decoder of one arm of the folder's model, for so many tokens."""
  kv = 'none' if arm == 'none' else 'int8'
  loaded = load.from_anywhere(
    folder, quantization=quantization_config.for_serving(arm, kv)
  )
  return play.decoder(loaded, None, rows=batch, length=length)


def sides(folder: pathlib.Path, settings: Any) -> dict[str, Times]:
  """Returns what times one prefill and the median step of each side."""
  from kaiju_jax.experiments.benchmarks.load_test import transformers_serving

  batch, length, steps = settings.batch, settings.length, settings.steps
  clock = _CLOCKS[settings.clock]
  out = {}
  for dtype in 'float32', 'bfloat16':
    model = transformers_serving.model(folder, dtype)
    for cache in transformers_serving.CACHES:
      out[f'transformers, {dtype}, {cache} cache'] = (
        transformers_serving.runner(model, batch, length, cache, steps, clock)
      )
  if all(map(importlib.util.find_spec, ('gguf', 'llama_cpp'))):
    from kaiju_jax.experiments.benchmarks.load_test import llama_serving

    llama_serving.write(folder / 'model.gguf', folder, 'int8')
    out['llama.cpp, Q8_0'] = llama_serving.runner(
      folder / 'model.gguf', batch, length, steps, clock
    )
  for arm in settings.arms:
    out[f'ours, int8={arm}'] = decode_speed.runner(
      ours(folder, arm, batch, length + steps + 1), length, steps, clock=clock
    )
  return out


def add_speed(page: report.Report, folder: pathlib.Path, settings: Any) -> None:
  """Adds tokens per second of prefill and of a greedy step, by side."""
  runs = sides(folder, settings)
  least = harness.take_turns(runs, settings.turns, warm=True)
  best = [
    min(x[place] for name, x in least.items() if name.startswith('transf'))
    for place in range(2)
  ]
  page.table(
    [
      (
        name,
        f'{settings.batch * settings.length / prefill:,.0f}',
        f'{best[0] / prefill:.2f}',
        f'{settings.batch / step:,.1f}',
        f'{best[1] / step:.2f}',
      )
      for name, (prefill, step) in least.items()
    ],
    ('', 'prefill, tokens/s', '×', 'decode, tokens/s', '×'),
    caption='× is against the fastest of transformers',
  )


def add_quality(
  page: report.Report, folder: pathlib.Path, settings: Any
) -> None:
  """Adds how far our arms are from `transformers` in float32."""
  import torch

  from kaiju_jax.experiments.benchmarks.load_test import transformers_serving

  length = min(settings.length, 64)
  model = transformers_serving.model(folder, 'float32')
  rng = np.random.default_rng(1)
  tokens_BL = rng.integers(0, model.config.vocab_size, (1, length), np.int32)
  with torch.inference_mode():
    theirs_LV = model(torch.from_numpy(tokens_BL).long()).logits[0].numpy()
  del model

  def call(network, params, cache, rings, row_B, tokens_BL):
    count_B = np.full(1, length, np.int32)
    hidden_BLD, cache = extend.text(
      network, params, cache, rings, row_B, tokens_BL, count_B
    )
    return extend.logits(network, params, hidden_BLD), cache

  wanted_LV = np.asarray(jax.nn.log_softmax(theirs_LV))
  rows = []
  for arm in settings.arms:
    decoder = ours(folder, arm, 1, length + 1)
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
    kv = round(footprint.kv_caches(decoder.config, 1)[0].per_token)
    rows.append((arm, f'{apart:.1e}', f'{kl:.1e}', f'{size / 1e6:.0f}', kv))
  columns = 'largest difference', 'KL, nats', 'weights, MB', 'KV bytes/token'
  page.table(rows, ('arm', *columns))


def add_local(page: report.Report, folder: pathlib.Path, settings: Any) -> None:
  """Adds a step with windows alone, behind few tokens and behind many."""
  del folder
  config = open_shapes.arcee(
    period=0,
    max_length=max(settings.length, settings.far) + settings.steps,
    quantization=quantization_config.QuantizationConfig(),
  )
  params = state.init_params(transformer.Transformer(config), 0)
  runs = {
    f'{length:,}': decode_speed.runner(
      decoder_lib.Decoder(
        params, config, rows=1, length=length + settings.steps
      ),
      length,
      settings.steps,
      min(length, 2048),
      _CLOCKS[settings.clock],
    )
    for length in (settings.length, settings.far)
  }
  least = harness.take_turns(runs, settings.turns, warm=True)
  page.table(
    [(name, f'{x:.2f}', f'{1e3 * y:.2f}') for name, (x, y) in least.items()],
    ('behind', 'prefill, s', 'step, ms'),
    title='Windows alone, int8, one row',
  )


PARTS = {'speed': add_speed, 'quality': add_quality, 'local': add_local}
