"""Measures how the engine serves, beside peers and over HTTP, with targets.

All contenders serve one model, 96.6 M parameters in the shape of Arcee
(`open_shapes.arcee`): transformers' continuous batching, and llama.cpp where it
is installed. What is not installed is said and left out.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
import importlib
import math
import pathlib
from typing import Any

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import placement
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.experiments.benchmarks.load_test import engine_serving
from kaiju_jax.experiments.benchmarks.load_test import load
from kaiju_jax.experiments.benchmarks.load_test import serving_parts
from kaiju_jax.experiments.benchmarks.parts import compilations
from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.experiments.benchmarks.parts import settings as settings_lib
from kaiju_jax.interchange import hugging_face
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.reporting import figures as figures_lib
from kaiju_jax.reporting import report
from kaiju_jax.training import state

_ALONE, _AHEAD = ', one at a time', ', a round ahead'
_COLUMNS = 'server', 'tokens/s', 'first p50, s', 'between p50, ms', 'p99, ms'


def measure(
  folder: pathlib.Path,
  settings: settings_lib.ServeSettings,
  page: report.Report,
) -> dict[str, Any]:
  """Measures throughput and the chosen parts; returns all figures.

  Args:
    folder: an empty folder, for the peers' models.
    settings: what is measured.
    page: gets a table and sentences.
  """
  length = max(settings.prompt[-1] + settings.answer[-1], settings.long + 256)
  config, params = _model(settings, length)
  engines = _engines(config, params, settings)
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
    best = serving_parts.throughput(contenders, at_once, settings.turns)
    found['throughput'] = best
    _add_throughput(page, best, at_once, settings)
    tokens = sum(x.max_tokens for x in at_once) / len(at_once)
    capacity = best['ours, int8'].tokens_per_second / tokens
    for part, run in {
      'reuse': lambda: _reuse(ours, settings, page),
      'between': lambda: _between(ours, settings, page),
      'overload': lambda: _overload(ours, capacity, settings, page),
      'curve': lambda: _curve(contenders, capacity, settings),
    }.items():
      if part in settings.parts:
        found[part] = run()
  page.say(f'Compilations after the warm-up: {len(compiled)} (target 0).')
  return found | {'compilations': len(compiled)}


def measure_over_http(
  folder: pathlib.Path,
  settings: settings_lib.ServeSettings,
  page: report.Report,
) -> dict[str, Any]:
  """Measures a server over HTTP beside its engine; see `measure`."""
  from kaiju_jax.experiments.benchmarks.load_test import http_serving

  config, params = _model(settings, settings.long + 256)
  engine = _engines(config, params, settings, ['int8'])['int8']
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
  title = _load(at_once, settings)
  page.table(_rows(best), _COLUMNS, title=title)
  ratio = best['over HTTP'].tokens_per_second / best['engine'].tokens_per_second
  own, other = (1e3 * load.percentile(firsts[name], 50) for name in ways)
  page.say(
    f'over HTTP: {ratio:.3f} x the engine (target 0.9)',
    f'First token p50, one request alone: {own:.1f} ms, over HTTP'
    f' {other:.1f} ms (target {own + 10:.1f})',
    f'Reused: {100 * reused.second_turn:.1f} % of a second turn,'
    f" {100 * reused.second_user:.1f} % of a second user's first (target 95)",
  )
  return best | {'first': firsts, 'reused': reused}


def draw(curves: dict[str, list], path: str) -> None:
  """Draws the first tokens' latency over the rate, by contender, to a PNG."""
  page = figures_lib.figure(8, 4)
  first, between = page.subplots(1, 2)
  for name, points in curves.items():
    rates = [point['rate'] for point in points]
    for axes, field in (first, 'first'), (between, 'between'):
      p50, p99 = (
        [point[f'{field}_p{n}'] for point in points] for n in (50, 99)
      )
      (line,) = axes.plot(rates, p50, label=name)
      axes.plot(rates, p99, linestyle='dotted', color=line.get_color())
  first.set_ylabel('first token, s (p99 dotted)')
  between.set_ylabel('between tokens, s (p99 dotted)')
  for axes in first, between:
    axes.set_xlabel('requests per second')
    axes.set_yscale('log')
  first.legend(fontsize='small')
  figures_lib.save(page, path)


def _model(settings: settings_lib.ServeSettings, length: int):
  """Returns the config in float32, and parameters for every contender."""
  config = open_shapes.arcee(num_layers=settings.layers, max_length=length)
  return config, state.init_params(transformer.Transformer(config), 0)


def _engines(config, params, settings, names: Sequence[str] | None = None):
  """Returns our engines: float32 and int8, all rows and one, a round ahead."""
  int8 = dataclasses.replace(
    config, quantization=quantization_config.QuantizationConfig()
  )

  def engine(config, rows, ahead=False):
    decoder = decoder_lib.Decoder(
      params,
      config,
      rows=rows,
      length=config.max_length,
      mesh=placement.make(settings.tensor),
    )
    return engine_lib.Engine(decoder, ahead=ahead)

  rows = settings.rows
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


def _peers(folder, config, params, settings) -> dict[str, Callable]:
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
  importlib.import_module('xllamacpp')  # Which the module itself imports late.
  from kaiju_jax.experiments.benchmarks.load_test import llama_serving

  path = folder / f'{dtype}.gguf'
  llama_serving.write(path, folder / 'model', dtype)
  return functools.partial(llama_serving.serve, path, in_flight=rows)


def _rows(best: dict[str, load.Figures]) -> list[tuple[str, ...]]:
  return [
    (
      name,
      f'{x.tokens_per_second:.1f}',
      f'{x.first_p50:.2f}',
      f'{1e3 * x.between_p50:.1f}',
      f'{1e3 * x.between_p99:.1f}',
    )
    for name, x in best.items()
  ]


def _load(arrivals, settings) -> str:
  """Returns what is served at once, and by how many of our devices."""
  title = f'{len(arrivals)} requests, {settings.rows} in flight'
  if settings.tensor > 1:
    title += f', ours on {settings.tensor} devices'
  return title


def _add_throughput(page, best, arrivals, settings) -> None:
  title = f'{_load(arrivals, settings)}; the best of {settings.turns} turns'
  page.table(_rows(best), _COLUMNS, title=title)
  rates = {name: x.tokens_per_second for name, x in best.items()}
  theirs = [y for x, y in rates.items() if x.startswith('transformers')]
  for dtype in 'float32', 'int8':
    own = rates[f'ours, {dtype}']
    ratio = own / rates[f'ours, {dtype}{_ALONE}']
    page.say(f'ours, {dtype}: {ratio:.2f} x one at a time (target 3)')
    if theirs:
      ratio = own / max(theirs)
      page.say(f'ours, {dtype}: {ratio:.2f} x transformers (target 1.5)')


def _reuse(engine, settings, page) -> serving_parts.Reuse:
  length = settings.long // 2
  reuse = serving_parts.reuse(engine, length, 0.95, settings.turns)
  page.say(
    f'First token of {length:,} tokens: {reuse.cold:.3f} s cold,'
    f' {reuse.warm:.3f} s with {100 * reuse.reused:.0f} % reused:'
    f' {reuse.warm / reuse.cold:.3f} x (target 0.1)'
  )
  return reuse


def _between(engine, settings, page) -> serving_parts.Between:
  found = serving_parts.measure_gaps(
    engine, settings.rows // 2, settings.long, 60
  )
  quiet, entering, chunk = (1e3 * seconds for seconds in found)
  page.say(
    f'Between tokens, p99: {quiet:.0f} ms quiet, {entering:.0f} ms while'
    f' prompts of {settings.long:,} tokens enter (target'
    f' {2 * quiet + chunk:.0f} ms: 2 x quiet + a chunk of {chunk:.0f} ms)'
  )
  return found


def _overload(engine, capacity, settings, page) -> serving_parts.Overload:
  arrivals = load.arrivals(settings.load(3 * capacity))
  found = serving_parts.overload(engine, arrivals, settings.wait)
  page.say(
    f'At 3 x {capacity:.2f} requests/s: {found.figures.served} admitted, first'
    f' token p99 {found.figures.first_p99:.2f} s (target {settings.wait:g});'
    f' {found.figures.refused} refused within'
    f' {1e3 * found.refused_within:.1f} ms, told to wait'
    f' {found.wait[0]:.1f}…{found.wait[1]:.1f} s'
  )
  return found


def _curve(contenders, capacity: float, settings) -> dict[str, list]:
  """Serves the same load at rising rates; prints how far it is."""
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
        f' tokens p99 {1e3 * figures.between_p99:.0f} ms',
        flush=True,
      )
  return curves
