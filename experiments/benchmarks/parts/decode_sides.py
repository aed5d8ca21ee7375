"""The sides of `benchmarks.decode`, which read one folder, and its tables."""

import atexit
from collections.abc import Callable
from concurrent import futures
import contextlib
import functools
import importlib.util
import math
import pathlib
import tempfile
import time
from typing import Any

import httpx
import jax
import numpy as np

from kaiju_jax.costs import footprint
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.device import placement
from kaiju_jax.experiments.benchmarks import harness
from kaiju_jax.experiments.benchmarks.parts import decode_speed
from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.experiments.benchmarks.parts import served
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.reporting import report
from kaiju_jax.runs import play
from kaiju_jax.training import state

_CLOCKS = {'wall': time.perf_counter, 'processor': time.process_time}
# Servers and pools of `sides`, open until the process ends.
_OPENED = contextlib.ExitStack()
atexit.register(_OPENED.close)
Times = Callable[[], tuple[float, float]]


def ours(
  folder: pathlib.Path, arm: str, batch: int, length: int, tensor: int = 1
):
  """Returns a decoder of one arm of the folder's model, for so many tokens."""
  kv = 'none' if arm == 'none' else 'int8'
  player = play.Player(int8=arm, kv=kv, length=length, tensor=tensor)
  return player.decoder(player.load(folder), None, batch)


def _name(arm: str, settings: Any) -> str:
  """Returns the name of our side in tables."""
  devices = f', {settings.tensor} devices' if settings.tensor > 1 else ''
  return f'ours, int8={arm}{devices}'


def sides(folder: pathlib.Path, settings: Any) -> dict[str, Times]:
  """Returns what times a prefill, and it with all steps, of each side."""
  from kaiju_jax.experiments.benchmarks.load_test import transformers_serving

  batch, length, steps = settings.batch, settings.length, settings.steps
  clock = _CLOCKS[settings.clock]
  out = {}
  for dtype in settings.peers:
    model = transformers_serving.model(folder, dtype)
    for cache in transformers_serving.CACHES:
      out[f'transformers, {dtype}, {cache} cache'] = (
        transformers_serving.runner(model, batch, length, cache, steps, clock)
      )
  for arm in settings.arms:
    decoder = ours(folder, arm, batch, length + steps + 1, settings.tensor)
    out[_name(arm, settings)] = decode_speed.runner(
      decoder, length, steps, clock=clock
    )
  out = {name: _add_steps(run, steps) for name, run in out.items()}
  return out | _servers(folder, settings, clock)


def _add_steps(run: Times, steps: int) -> Times:
  """Returns what tells a prefill, and it with so many median steps."""

  def both():
    prefill, step = run()
    return prefill, prefill + steps * step

  return both


def _servers(path: pathlib.Path, settings: Any, clock) -> dict[str, Times]:
  """Returns the sides of llama.cpp, and of servers over HTTP."""
  folder = _OPENED.enter_context(tempfile.TemporaryDirectory())
  out, clients = {}, {}
  if all(map(importlib.util.find_spec, ('gguf', 'xllamacpp'))):
    from kaiju_jax.experiments.benchmarks.load_test import llama_serving

    coded = pathlib.Path(folder) / 'model.Q8_0.gguf'
    if settings.model:
      llama_serving.recode(coded, path)
    else:
      llama_serving.write(coded, path, 'int8')
    length = settings.length + settings.steps + 1
    for file in (path, coded) if settings.model else (coded,):
      server = llama_serving.start(file, settings.batch, length)
      name = f'llama.cpp, {file.stem.rpartition(".")[2]}'
      out[name] = _by_requests(server.handle_completions, settings, clock)
      clients[name] = {'base_url': server.listening_address, 'timeout': 600}
  if settings.http:
    arm = settings.arms[0]
    wanted = f'--int8={arm}', f'--tensor={settings.tensor}'
    server = served.start(str(path), folder, *wanted)
    _OPENED.callback(server.process.kill)
    clients[_name(arm, settings)] = server.client
    for name, client in clients.items():
      ask = _asking(httpx.Client(**client))
      out[f'{name}, HTTP'] = _by_requests(ask, settings, clock)
  return out


def _asking(client: httpx.Client):
  """Returns what a server answers to a body of OpenAI's completions."""
  model = client.get('/v1/models').json()['data'][0]['id']

  def ask(body):
    answer = client.post('/v1/completions', json={'model': model, **body})
    if answer.is_error:
      raise SystemExit(f'error: {client.base_url}: {answer.text}')
    return answer.json()

  return ask


def _by_requests(
  ask: Callable[[dict[str, Any]], dict[str, Any]], settings: Any, clock
) -> Times:
  """Returns what times requests of OpenAI's form, a row each, side by side.

  The prefill is that of new prompts with one token each.
  """
  pool = _OPENED.enter_context(futures.ThreadPoolExecutor(settings.batch))
  rng = np.random.default_rng(0)

  def run():
    taken = []
    for count in 1, 1 + settings.steps:
      shape = settings.batch, settings.length
      bodies = [
        {'prompt': prompt, 'max_tokens': count, 'temperature': 0}
        for prompt in rng.integers(1000, 30_000, shape).tolist()
      ]
      started = clock()
      answers = list(pool.map(ask, bodies))
      taken.append(clock() - started)
      if any(x['usage']['completion_tokens'] != count for x in answers):
        raise SystemExit('error: a text ended early; try other --length.')
    return taken

  return run


def add_speed(page: report.Report, folder: pathlib.Path, settings: Any) -> None:
  """Adds tokens per second of prefill and of a greedy step, by side."""
  runs = sides(folder, settings)
  least = {
    name: (prefill, (whole - prefill) / settings.steps)
    for name, (prefill, whole) in harness.take_turns(
      runs, settings.turns, warm=True
    ).items()
  }
  peer = 'llama.cpp, Q8_0' if settings.model else 'transformers'
  peers = [x for name, x in least.items() if name.startswith(peer)]
  best = [min((x[place] for x in peers), default=math.nan) for place in (0, 1)]
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
    caption=f'× is against the fastest of {peer}',
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
    decoder = ours(folder, arm, 1, length + 1, settings.tensor)
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
    name = _name(arm, settings)
    rows.append((name, f'{apart:.1e}', f'{kl:.1e}', f'{size / 1e6:.0f}', kv))
  columns = 'largest difference', 'KL, nats', 'weights, MB', 'KV bytes/token'
  page.table(rows, ('side', *columns))


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
        params,
        config,
        rows=1,
        length=length + settings.steps,
        mesh=placement.make(settings.tensor),
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
    title=f'Windows alone, one row; {_name("all", settings)}',
  )


PARTS = {'speed': add_speed, 'quality': add_quality, 'local': add_local}
