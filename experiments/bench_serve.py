r"""How fast does the engine serve, and how does it behave under overload?

    taskset -c 0,1 python -m experiments.bench_serve
        [--parts=reuse,between,overload,curve]
        [--turns=2] [--json=PATH] [--figure=PATH]
    taskset -c 0,1 python -m experiments.bench_serve --http
    taskset -c 0 python -m experiments.bench_serve --host --rows=32

The model is that of `experiments.benchmarks.decode`, 96.6 M parameters in the
shape of Arcee, so that peers serve equal weights: transformers' continuous
batching (extra `interchange`), and llama.cpp where it is installed (`pip
install llama-cpp-python gguf`). What is not installed is said and left out.

`serving_parts.py` says what each part measures; `curve` serves the same Poisson
load at several rates and draws the latency of the first token, ours and
theirs. Compilations after the warm-up are counted; the target is none.

--http serves the same load over HTTP instead, beside the engine without it, and
says what conversations reuse. --host prints the processor time of a round on
the host alone, with --rows rows, and while 22 prompts of 32k tokens wait.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
import math
import os
import pathlib
import tempfile

from absl import flags
import numpy as np
import rich.console

from kaiju_jax.runs import command
from kaiju_jax.runs import report

PARTS = 'reuse', 'between', 'overload', 'curve'
PEERS = {
  'transformers': ('float32', 'bfloat16'),
  'llama.cpp': ('float32', 'int8'),
}
_ALONE, _AHEAD = ', one at a time', ', a round ahead'
_PARTS = flags.DEFINE_list(
  'parts', list(PARTS), 'What is measured beside the throughput.'
)
_TURNS = flags.DEFINE_integer('turns', 2, 'How often contenders run.', 1)
_ROWS = flags.DEFINE_integer('rows', 8, 'Sequences in flight.', 1)
_COUNT = flags.DEFINE_integer('count', 24, 'Requests of a load.', 2)
_SECONDS = flags.DEFINE_float(
  'seconds', 30.0, 'How long a Poisson load lasts, about.', 1.0
)
_LAYERS = flags.DEFINE_integer('layers', 12, 'Layers of the model.', 1)
_PROMPT = flags.DEFINE_list('prompt', ['32', '256'], 'Fewest and most tokens.')
_ANSWER = flags.DEFINE_list('answer', ['32', '96'], 'Fewest and most tokens.')
_LONG = flags.DEFINE_integer('long', 2048, 'Tokens of long prompts.', 2)
_WAIT = flags.DEFINE_float('wait', 2.5, 'Seconds to a first token, at most.')
_HTTP = flags.DEFINE_bool(
  'http', False, 'Compare a server over HTTP with its engine, and no peers.'
)
_HOST = flags.DEFINE_bool(
  'host', False, 'Measure the host alone, over calls that take no time.'
)
_PEERS = flags.DEFINE_list(
  'peers',
  [f'{peer}:{dtype}' for peer, dtypes in PEERS.items() for dtype in dtypes],
  'Which peers run, and in which dtype.',
)
_JSON = flags.DEFINE_string('json', None, 'Where the figures go as JSON.')
_FIGURE = flags.DEFINE_string('figure', None, 'Where the figure goes (png).')


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  command.choose(_PARTS, PARTS)
  if _PEERS.value:  # None at all is a choice, too.
    command.choose(_PEERS, _PEERS.default)
  if 'between' in _PARTS.value and _ROWS.value < 2:
    raise ValueError('--rows=1: the part between needs two.')
  if _HOST.value:
    _host()
    return
  lengths = [_pair(_PROMPT), _pair(_ANSWER)]
  os.environ.setdefault('OMP_WAIT_POLICY', 'passive')
  with tempfile.TemporaryDirectory() as folder:
    if _HTTP.value:
      _over_http(pathlib.Path(folder), *lengths)
    else:
      _run(pathlib.Path(folder), *lengths)


def _pair(flag) -> tuple[int, int]:
  found = command.numbers(flag, int)
  return found[0], found[-1]


def _run(folder: pathlib.Path, prompt, answer) -> None:
  from kaiju_jax.storage import files

  from .benchmarks import compilations
  from .benchmarks import engine_serving
  from .benchmarks import load

  config, params = _model(max(prompt[1] + answer[1], _LONG.value + 256))
  engines = _engines(config, params)
  for engine in engines.values():
    engine_serving.warm(engine, 80)
  contenders = {
    f'ours, {name}': functools.partial(_ours, engine)
    for name, engine in engines.items()
  }
  contenders |= _peers(folder, config, params)
  drawn = functools.partial(load.Load, prompt=prompt, answer=answer)
  ours, found = engines['int8'], {}
  with compilations.record() as compiled:
    at_once = load.arrivals(drawn(rate=math.inf, count=_COUNT.value))
    rates, found['throughput'] = _throughput(contenders, at_once)
    tokens = sum(x.max_tokens for x in at_once) / len(at_once)
    capacity = rates['ours, int8'] / tokens
    for part, measure in {
      'reuse': lambda: _reuse(ours),
      'between': lambda: _between(ours),
      'overload': lambda: _overload(ours, drawn, capacity),
      'curve': lambda: _curve(contenders, drawn, capacity),
    }.items():
      if part in _PARTS.value:
        found[part] = measure()
  print(f'Compilations after the warm-up: {len(compiled)} (target 0).')
  found['compilations'] = len(compiled)
  if _JSON.value:
    files.write_json(pathlib.Path(_JSON.value), found)


def _host() -> None:
  from .benchmarks import serving_parts

  for _ in range(_TURNS.value):
    found = serving_parts.measure_host(_ROWS.value, 22, 32_768, 200)
    print(
      f'Host, processor time per round: {found.drawing:.2f} ms with'
      f' {_ROWS.value} rows that draw (target 0.3), {found.waiting:.2f} ms with'
      ' 22 prompts of 32,768 tokens waiting (target 1)'
    )


def _over_http(folder: pathlib.Path, prompt, answer) -> None:
  from kaiju_jax.storage import files

  from .benchmarks import engine_serving
  from .benchmarks import http_serving
  from .benchmarks import load
  from .benchmarks import serving_parts

  config, params = _model(_LONG.value + 256)
  engine = _engines(config, params, ['int8'])['int8']
  engine_serving.warm(engine, 80)
  drawn = functools.partial(load.Load, prompt=prompt, answer=answer)
  at_once = load.arrivals(drawn(rate=math.inf, count=_COUNT.value))
  alone = load.arrivals(drawn(rate=math.inf, count=1))[0]._replace(max_tokens=4)
  with http_serving.serve(engine, folder) as server:
    ways = {
      'engine': functools.partial(http_serving.without_http, server),
      'over HTTP': functools.partial(http_serving.over_http, server),
    }
    best = serving_parts.throughput(ways, at_once, _TURNS.value)
    firsts = {
      name: [serve([alone])[0].seconds[0] for _ in range(8 * _TURNS.value)]
      for name, serve in ways.items()
    }
    reused = http_serving.measure_reuse(server, _LONG.value // 2)
  title = f'{len(at_once)} requests, {_ROWS.value} in flight'
  rich.console.Console().print(serving_parts.table(title, best))
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
  if _JSON.value:
    found = {name: figures._asdict() for name, figures in best.items()}
    found |= {'first': firsts, 'reused': reused._asdict()}
    files.write_json(pathlib.Path(_JSON.value), found)


def _model(length: int):
  """Returns the config in float32, and parameters for every contender."""
  from kaiju_jax.model import transformer
  from kaiju_jax.training import state

  from .benchmarks import peer_model

  config = peer_model.config(num_layers=_LAYERS.value, max_length=length)
  return config, state.init_params(transformer.Transformer(config), 0)


def _engines(config, params, names: Sequence[str] | None = None):
  """Returns our engines: float32 and int8, all rows and one, a round ahead."""
  from kaiju_jax.decoding.device import decoder as decoder_lib
  from kaiju_jax.decoding.engine import engine as engine_lib
  from kaiju_jax.quantization import config as quantization_config

  int8 = dataclasses.replace(
    config, quantization=quantization_config.QuantizationConfig()
  )

  def engine(config, rows, ahead=False):
    decoder = decoder_lib.Decoder(
      params, config, rows=rows, length=config.max_length
    )
    return engine_lib.Engine(decoder, ahead=ahead)

  made = {
    'float32': (config, _ROWS.value),
    'int8': (int8, _ROWS.value),
    f'int8{_AHEAD}': (int8, _ROWS.value, True),
    f'float32{_ALONE}': (config, 1),
    f'int8{_ALONE}': (int8, 1),
  }
  return {name: engine(*made[name]) for name in names or made}


def _ours(engine, arrivals):
  from .benchmarks import engine_serving

  engine_serving.forget(engine)
  return engine_serving.serve(engine, arrivals)


def _peers(folder: pathlib.Path, config, params) -> dict[str, Callable]:
  """Returns what serves equal weights, with the settings fastest here."""
  from kaiju_jax.interchange import hugging_face

  hugging_face.write(folder / 'model', params, config)
  found: dict[str, Callable] = {}
  for named in _PEERS.value:
    peer, _, dtype = named.partition(':')
    try:
      found[f'{peer}, {dtype}'] = _peer(folder, peer, dtype)
    except ImportError as error:
      print(f'{named} is left out: {error}.')
  return found


def _peer(folder: pathlib.Path, peer: str, dtype: str) -> Callable:
  if peer == 'transformers':
    from .benchmarks import transformers_serving

    model = transformers_serving.model(folder / 'model', dtype=dtype)
    return functools.partial(
      transformers_serving.serve, model, in_flight=_ROWS.value
    )
  from .benchmarks import llama_serving

  path = folder / f'{dtype}.gguf'
  llama_serving.write(path, folder / 'model', dtype)
  return functools.partial(llama_serving.serve, path, in_flight=_ROWS.value)


def _throughput(contenders, arrivals) -> tuple[dict[str, float], dict]:
  """Returns tokens per second by contender, and all figures."""
  from .benchmarks import serving_parts

  best = serving_parts.throughput(contenders, arrivals, _TURNS.value)
  rates = {name: figures.tokens_per_second for name, figures in best.items()}
  title = (
    f'{len(arrivals)} requests, {_ROWS.value} in flight; the best of'
    f' {_TURNS.value} turns'
  )
  rich.console.Console().print(serving_parts.table(title, best))
  theirs = [y for x, y in rates.items() if x.startswith('transformers')]
  for dtype in 'float32', 'int8':
    own = rates[f'ours, {dtype}']
    alone = rates[f'ours, {dtype}{_ALONE}']
    print(f'ours, {dtype}: {own / alone:.2f} x one at a time (target 3)')
    if theirs:
      ratio = own / max(theirs)
      print(f'ours, {dtype}: {ratio:.2f} x transformers (target 1.5)')
  return rates, {name: figures._asdict() for name, figures in best.items()}


def _reuse(engine) -> dict:
  from .benchmarks import serving_parts

  length = _LONG.value // 2
  reuse = serving_parts.reuse(engine, length, 0.95, _TURNS.value)
  print(
    f'First token of {length:,} tokens: {reuse.cold:.3f} s cold,'
    f' {reuse.warm:.3f} s with {100 * reuse.reused:.0f} % reused:'
    f' {reuse.warm / reuse.cold:.3f} x (target 0.1)'
  )
  return reuse._asdict()


def _between(engine) -> dict:
  from .benchmarks import serving_parts

  found = serving_parts.measure_gaps(engine, _ROWS.value // 2, _LONG.value, 60)
  quiet, entering, chunk = (1e3 * seconds for seconds in found)
  print(
    f'Between tokens, p99: {quiet:.0f} ms quiet, {entering:.0f} ms while'
    f' prompts of {_LONG.value:,} tokens enter (target'
    f' {2 * quiet + chunk:.0f} ms: 2 x quiet + a chunk of {chunk:.0f} ms)'
  )
  return found._asdict()


def _overload(engine, drawn, capacity: float) -> dict:
  from .benchmarks import load
  from .benchmarks import serving_parts

  rate = 3 * capacity
  arrivals = load.arrivals(drawn(rate=rate, count=_of_load(rate)))
  found = serving_parts.overload(engine, arrivals, _WAIT.value)
  print(
    f'At 3 x {capacity:.2f} requests/s: {found.figures.served} admitted, first'
    f' token p99 {found.figures.first_p99:.2f} s (target {_WAIT.value:g});'
    f' {found.figures.refused} refused within'
    f' {1e3 * found.refused_within:.1f} ms, told to wait'
    f' {found.wait[0]:.1f}…{found.wait[1]:.1f} s'
  )
  return found._asdict() | {'figures': found.figures._asdict()}


def _curve(contenders, drawn, capacity: float) -> dict:
  """Serves the same load at rising rates; draws the first tokens' latency."""
  from .benchmarks import load

  names = [
    name
    for name in contenders
    if not name.endswith((_ALONE, _AHEAD)) and not name.startswith('llama')
  ]
  curves: dict[str, list] = {name: [] for name in names}
  for part in 0.25, 0.5, 0.75, 1.0:
    rate = part * capacity
    arrivals = load.arrivals(drawn(rate=rate, count=_of_load(rate)))
    for name in names:
      figures = load.figures(contenders[name](arrivals))
      curves[name].append({'rate': rate} | figures._asdict())
      print(
        f'{rate:.2f} requests/s: {name}: first token p50'
        f' {figures.first_p50:.2f}, p99 {figures.first_p99:.2f} s; between'
        f' tokens p99 {1e3 * figures.between_p99:.0f} ms'
      )
  if _FIGURE.value:
    _draw(curves)
  return curves


def _draw(curves: dict[str, list]) -> None:
  page = report.figure(8, 4)
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
  report.save(page, _FIGURE.value)


def _of_load(rate: float) -> int:
  return max(int(rate * _SECONDS.value), 8)


if __name__ == '__main__':
  command.run(main)
