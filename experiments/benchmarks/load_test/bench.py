"""Measures how the engine serves, beside peers and over HTTP; prints targets.

All contenders serve one model, 96.6 M parameters in the shape of Arcee
(`peer_model.py`): transformers' continuous batching, and llama.cpp where it is
installed. What is not installed is said and left out.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
import math
import pathlib
from typing import Any

import numpy as np

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.experiments.benchmarks.load_test import engine_serving
from kaiju_jax.experiments.benchmarks.load_test import load
from kaiju_jax.experiments.benchmarks.load_test import peer_model
from kaiju_jax.experiments.benchmarks.load_test import serving_parts
from kaiju_jax.experiments.benchmarks.parts import compilations
from kaiju_jax.interchange import hugging_face
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.reporting import figures as figures_lib
from kaiju_jax.reporting import report
from kaiju_jax.training import state

_ALONE, _AHEAD = ', one at a time', ', a round ahead'


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings of a measurement.

  Attributes:
    parts: what is measured beside the throughput: 'reuse', 'between',
      'overload', 'curve'.
    peers: the peers that run, each with its dtype: 'transformers:float32'.
    turns: how often contenders run.
    rows: sequences in flight.
    count: requests of a load.
    seconds: how long a Poisson load lasts, about.
    layers: layers of the model.
    prompt: fewest and most tokens of a prompt.
    answer: fewest and most tokens of an answer.
    long: tokens of long prompts.
    wait: most seconds to a first token.
  """

  parts: tuple[str, ...] = ()
  peers: tuple[str, ...] = ()
  turns: int = 2
  rows: int = 8
  count: int = 24
  seconds: float = 30.0
  layers: int = 12
  prompt: tuple[int, int] = (32, 256)
  answer: tuple[int, int] = (32, 96)
  long: int = 2048
  wait: float = 2.5

  def load(self, rate: float, count: int | None = None) -> load.Load:
    """Returns a load at a rate, by default for about `seconds`."""
    if count is None:
      count = max(int(rate * self.seconds), 8)
    return load.Load(
      rate=rate, count=count, prompt=self.prompt, answer=self.answer
    )


def measure(folder: pathlib.Path, settings: Settings) -> dict[str, Any]:
  """Measures throughput and the chosen parts; returns all figures.

  Args:
    folder: an empty folder, for the peers' models.
    settings: the settings of the measurement.
  """
  length = max(settings.prompt[1] + settings.answer[1], settings.long + 256)
  config, params = _model(settings, length)
  engines = _engines(config, params, settings.rows)
  for engine in engines.values():
    engine_serving.warm(engine, 80)
  contenders = {
    f'ours, {name}': functools.partial(_ours, engine)
    for name, engine in engines.items()
  }
  contenders |= _peers(folder, config, params, settings)
  ours, found = engines['int8'], {}
  with compilations.record() as compiled:
    at_once = load.arrivals(settings.load(math.inf, settings.count))
    rates, found['throughput'] = _throughput(contenders, at_once, settings)
    tokens = sum(x.max_tokens for x in at_once) / len(at_once)
    capacity = rates['ours, int8'] / tokens
    for part, measured in {
      'reuse': lambda: _reuse(ours, settings),
      'between': lambda: _between(ours, settings),
      'overload': lambda: _overload(ours, capacity, settings),
      'curve': lambda: _curve(contenders, capacity, settings),
    }.items():
      if part in settings.parts:
        found[part] = measured()
  print(f'Compilations after the warm-up: {len(compiled)} (target 0).')
  found['compilations'] = len(compiled)
  return found


def measure_host(settings: Settings) -> None:
  """Prints the host's processor time per round, `turns` times."""
  for _ in range(settings.turns):
    found = serving_parts.measure_host(settings.rows, 22, 32_768, 200)
    print(
      f'Host, processor time per round: {found.drawing:.2f} ms with'
      f' {settings.rows} rows that draw (target 0.3), {found.waiting:.2f} ms'
      ' with 22 prompts of 32,768 tokens waiting (target 1)'
    )


def measure_over_http(
  folder: pathlib.Path, settings: Settings
) -> dict[str, Any]:
  """Measures a server over HTTP beside its engine; returns all figures.

  Args:
    folder: an empty folder, for the server's files.
    settings: the settings of the measurement.
  """
  from kaiju_jax.experiments.benchmarks.load_test import http_serving

  config, params = _model(settings, settings.long + 256)
  engine = _engines(config, params, settings.rows, ['int8'])['int8']
  engine_serving.warm(engine, 80)
  at_once = load.arrivals(settings.load(math.inf, settings.count))
  alone = load.arrivals(settings.load(math.inf, 1))[0]._replace(max_tokens=4)
  with http_serving.serve(engine, folder) as server:
    ways = {
      'engine': functools.partial(http_serving.without_http, server),
      'over HTTP': functools.partial(http_serving.over_http, server),
    }
    best = serving_parts.throughput(ways, at_once, settings.turns)
    firsts = {
      name: [serve([alone])[0].seconds[0] for _ in range(8 * settings.turns)]
      for name, serve in ways.items()
    }
    reused = http_serving.measure_reuse(server, settings.long // 2)
  title = f'{len(at_once)} requests, {settings.rows} in flight'
  report.Report().add(serving_parts.table(title, best)).show()
  ratio = best['over HTTP'].tokens_per_second / best['engine'].tokens_per_second
  print(f'over HTTP: {ratio:.3f} x the engine (target 0.9)')
  own, other = (
    1e3 * load.percentile(np.array(firsts[name]), 50) for name in ways
  )
  print(
    f'First token p50, one request alone: {own:.1f} ms, over HTTP'
    f' {other:.1f} ms (target {own + 10:.1f})'
  )
  print(
    f'Reused: {100 * reused.second_turn:.1f} % of a second turn,'
    f" {100 * reused.second_user:.1f} % of a second user's first (target 95)"
  )
  found = {name: figures._asdict() for name, figures in best.items()}
  return found | {'first': firsts, 'reused': reused._asdict()}


def draw(curves: dict[str, list], path: str) -> None:
  """Draws the first tokens' latency over the rate, by contender, to a PNG."""
  page = figures_lib.figure(8, 4)
  first, between = page.subplots(1, 2)
  for name, points in curves.items():
    rates = [point['rate'] for point in points]
    for axes, field in (first, 'first'), (between, 'between'):
      (line,) = axes.plot(
        rates, [point[f'{field}_p50'] for point in points], label=name
      )
      axes.plot(
        rates,
        [point[f'{field}_p99'] for point in points],
        linestyle='dotted',
        color=line.get_color(),
      )
  first.set_ylabel('first token, s (p99 dotted)')
  between.set_ylabel('between tokens, s (p99 dotted)')
  for axes in first, between:
    axes.set_xlabel('requests per second')
    axes.set_yscale('log')
  first.legend(fontsize='small')
  figures_lib.save(page, path)


def _model(settings: Settings, length: int):
  """Returns the config in float32, and parameters for every contender."""
  config = peer_model.config(num_layers=settings.layers, max_length=length)
  return config, state.init_params(transformer.Transformer(config), 0)


def _engines(config, params, rows: int, names: Sequence[str] | None = None):
  """Returns our engines: float32 and int8, all rows and one, a round ahead."""
  int8 = dataclasses.replace(
    config, quantization=quantization_config.QuantizationConfig()
  )

  def engine(config, rows, ahead=False):
    decoder = decoder_lib.Decoder(
      params, config, rows=rows, length=config.max_length
    )
    return engine_lib.Engine(decoder, ahead=ahead)

  made = {
    'float32': (config, rows),
    'int8': (int8, rows),
    f'int8{_AHEAD}': (int8, rows, True),
    f'float32{_ALONE}': (config, 1),
    f'int8{_ALONE}': (int8, 1),
  }
  return {name: engine(*made[name]) for name in names or made}


def _ours(engine, arrivals):
  engine_serving.forget(engine)
  return engine_serving.serve(engine, arrivals)


def _peers(
  folder: pathlib.Path, config, params, settings: Settings
) -> dict[str, Callable]:
  """Returns what serves equal weights, with the settings fastest here."""
  hugging_face.write(folder / 'model', params, config)
  found: dict[str, Callable] = {}
  for named in settings.peers:
    peer, _, dtype = named.partition(':')
    try:
      found[f'{peer}, {dtype}'] = _peer(folder, peer, dtype, settings.rows)
    except ImportError as error:
      print(f'{named} is left out: {error}.')
  return found


def _peer(folder: pathlib.Path, peer: str, dtype: str, rows: int) -> Callable:
  if peer == 'transformers':
    from kaiju_jax.experiments.benchmarks.load_test import transformers_serving

    model = transformers_serving.model(folder / 'model', dtype=dtype)
    return functools.partial(transformers_serving.serve, model, in_flight=rows)
  from kaiju_jax.experiments.benchmarks.load_test import llama_serving

  path = folder / f'{dtype}.gguf'
  llama_serving.write(path, folder / 'model', dtype)
  return functools.partial(llama_serving.serve, path, in_flight=rows)


def _throughput(
  contenders, arrivals, settings: Settings
) -> tuple[dict[str, float], dict]:
  """Returns tokens per second by contender, and all figures."""
  best = serving_parts.throughput(contenders, arrivals, settings.turns)
  rates = {name: figures.tokens_per_second for name, figures in best.items()}
  title = (
    f'{len(arrivals)} requests, {settings.rows} in flight; the best of'
    f' {settings.turns} turns'
  )
  report.Report().add(serving_parts.table(title, best)).show()
  theirs = [y for x, y in rates.items() if x.startswith('transformers')]
  for dtype in 'float32', 'int8':
    own = rates[f'ours, {dtype}']
    alone = rates[f'ours, {dtype}{_ALONE}']
    print(f'ours, {dtype}: {own / alone:.2f} x one at a time (target 3)')
    if theirs:
      ratio = own / max(theirs)
      print(f'ours, {dtype}: {ratio:.2f} x transformers (target 1.5)')
  return rates, {name: figures._asdict() for name, figures in best.items()}


def _reuse(engine, settings: Settings) -> dict:
  length = settings.long // 2
  reuse = serving_parts.reuse(engine, length, 0.95, settings.turns)
  print(
    f'First token of {length:,} tokens: {reuse.cold:.3f} s cold,'
    f' {reuse.warm:.3f} s with {100 * reuse.reused:.0f} % reused:'
    f' {reuse.warm / reuse.cold:.3f} x (target 0.1)'
  )
  return reuse._asdict()


def _between(engine, settings: Settings) -> dict:
  found = serving_parts.measure_gaps(
    engine, settings.rows // 2, settings.long, 60
  )
  quiet, entering, chunk = (1e3 * seconds for seconds in found)
  print(
    f'Between tokens, p99: {quiet:.0f} ms quiet, {entering:.0f} ms while'
    f' prompts of {settings.long:,} tokens enter (target'
    f' {2 * quiet + chunk:.0f} ms: 2 x quiet + a chunk of {chunk:.0f} ms)'
  )
  return found._asdict()


def _overload(engine, capacity: float, settings: Settings) -> dict:
  arrivals = load.arrivals(settings.load(3 * capacity))
  found = serving_parts.overload(engine, arrivals, settings.wait)
  print(
    f'At 3 x {capacity:.2f} requests/s: {found.figures.served} admitted, first'
    f' token p99 {found.figures.first_p99:.2f} s (target {settings.wait:g});'
    f' {found.figures.refused} refused within'
    f' {1e3 * found.refused_within:.1f} ms, told to wait'
    f' {found.wait[0]:.1f}…{found.wait[1]:.1f} s'
  )
  return found._asdict() | {'figures': found.figures._asdict()}


def _curve(contenders, capacity: float, settings: Settings) -> dict:
  """Serves the same load at rising rates."""
  names = [
    name
    for name in contenders
    if not name.endswith((_ALONE, _AHEAD)) and not name.startswith('llama')
  ]
  curves: dict[str, list] = {name: [] for name in names}
  for part in 0.25, 0.5, 0.75, 1.0:
    rate = part * capacity
    arrivals = load.arrivals(settings.load(rate))
    for name in names:
      figures = load.figures(contenders[name](arrivals))
      curves[name].append({'rate': rate} | figures._asdict())
      print(
        f'{rate:.2f} requests/s: {name}: first token p50'
        f' {figures.first_p50:.2f}, p99 {figures.first_p99:.2f} s; between'
        f' tokens p99 {1e3 * figures.between_p99:.0f} ms'
      )
  return curves
