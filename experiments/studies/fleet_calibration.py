"""Measures rounds of the real engine, and serves one load there and simulated.

Both run the same requests: prompts of random tokens, with the prefixes of a few
characters. Two runs tell how much the machine varies. Where other processes
share the cores, the clock of this process's own processor time stands for the
wall's; pin it to one core then, because threads at once would count twice.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import pathlib
import time
from typing import Any

import numpy as np

from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.experiments.studies import fleet_settings
from kaiju_jax.fleet import calibration
from kaiju_jax.fleet import simulator
from kaiju_jax.fleet import state
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import flags
from kaiju_jax.runs import load
from kaiju_jax.runs import play

_CHARACTERS = 6
# Entries that an eviction ranks.
_DRAWN = 16
_LENGTH = 1024  # Tokens of a row, unless the model has fewer positions.


CLOCKS = {'wall': time.perf_counter, 'processor': time.process_time}


class Clock:
  """Seconds since it was made, of one of CLOCKS."""

  def __init__(self, name: str):
    self._name, self._read = name, CLOCKS[name]
    self._start, self._skipped = self._read(), 0.0

  def now(self) -> float:
    return self._read() - self._start + self._skipped

  def wait(self, until: float) -> None:
    """Waits for a second; on the processor's clock it comes at once."""
    gap = max(until - self.now(), 0.0)
    if self._name == 'wall':
      time.sleep(gap)
    else:
      self._skipped += gap


class Probe:
  """Counts the features of an engine's rounds (`state.Law`).

  Attributes:
    features: of the present round.
  """

  def __init__(self, engine: engine_lib.Engine):
    self.features: list[float] = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    lengths, rounds = engine.decoder.length_of, engine.rounds
    step, prefill = rounds.step, rounds.prefill

    def count_step(rows):
      self.features[1] += len(rows)
      self.features[2] += sum(map(lengths, rows))
      return step(rows)

    def count_prefill(chunks, shape):
      self.features[3] += shape[0] * shape[1]
      self.features[4] += sum(
        len(chunk.tokens_L) * lengths(chunk.row) for chunk in chunks
      )
      self.features[5] = 1.0
      return prefill(chunks, shape)

    rounds.step, rounds.prefill = count_step, count_prefill

  def reset(self) -> list[float]:
    """Returns the round's features, and begins another."""
    found, self.features = self.features, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    return found


def draw(
  count: int, vocabulary: int, length: int, seed: int
) -> tuple[simulator.Trace, list[request_lib.Request]]:
  """Draws requests that all come at second 0, and their trace.

  A request's owner is its own, so that owners' fair shares change no order.
  """
  rng = np.random.default_rng((seed, 21))
  low, high = length // 8, length // 3
  prefixes = [
    rng.integers(4, vocabulary, int(rng.integers(low, high)))
    for _ in range(_CHARACTERS)
  ]
  characters = rng.integers(_CHARACTERS, size=count)
  requests, columns = [], []
  for number, character in enumerate(characters.tolist()):
    prefix = prefixes[character]
    message = rng.integers(4, vocabulary, int(rng.integers(8, length // 6)))
    answer = int(rng.integers(4, length // 12))
    requests.append(
      request_lib.Request(
        np.concatenate([prefix, message]).astype(np.int32),
        answer,
        sampling.Sampling(seed=number),
        owner=str(number),
        shared=len(prefix),
        conversation=number,
      )
    )
    prompt = len(prefix) + len(message)
    columns.append((0.0, number, character, len(prefix), prompt, answer, 0))
  return simulator.Trace(*map(np.array, zip(*columns))), requests


def open_engine(path: str, rows: int) -> tuple[engine_lib.Engine, load.Loaded]:
  """Returns a warm engine of a model, and the model.

  Raises:
    ValueError: the model lacks global layers, or local ones of one window; or
      as `load`.
  """
  loaded = load.from_anywhere(path)
  length = min(_LENGTH, loaded.config.max_length)
  decoder = play.decoder(loaded, None, rows=rows, length=length)
  pools = decoder.network.pools
  if set(pools) != {prefix_tree.GLOBAL, prefix_tree.LOCAL}:
    raise ValueError(
      f'{path}: has layers of {sorted(pools)}; the simulated cache has global'
      ' ones and local ones of one window.'
    )
  # Room for what a fleet's replica keeps beside its rows.
  decoder = play.decoder(
    loaded,
    None,
    rows=rows,
    length=length,
    page_counts={kind: 3 * pool.pages for kind, pool in pools.items()},
  )
  engine = engine_lib.Engine(decoder)
  engine.warm()
  return engine, loaded


def sizes_of(engine: engine_lib.Engine) -> state.Sizes:
  """Returns what the simulator has to know of an engine."""
  pools = engine.decoder.network.pools
  local, everything = pools[prefix_tree.LOCAL], pools[prefix_tree.GLOBAL]
  return state.Sizes(
    engine.decoder.rows,
    everything.page,
    local.window,
    everything.pages,
    local.pages,
    _DRAWN,
    1,
  )


def serve(
  engine: engine_lib.Engine,
  seconds: np.ndarray,
  requests: Sequence[request_lib.Request],
  clock: str = 'wall',
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Serves requests at their seconds on one of CLOCKS.

  Returns:
    Seconds from each request to its first token, the features of all rounds
    that ran something, and their seconds.
  """
  probe, live, given = Probe(engine), {}, 0
  first = np.full(len(requests), np.nan)
  features, spent = [], []
  time_of = Clock(clock)
  while live or given < len(requests):
    now = time_of.now()
    if not live and given < len(requests) and seconds[given] > now:
      time_of.wait(seconds[given])
      continue
    while given < len(requests) and seconds[given] <= now:
      live[given] = engine.submit(requests[given])
      given += 1
    began = time_of.now()
    engine.advance()
    ended = time_of.now()
    one = probe.reset()
    if any(one[1:]):
      features.append(one)
      spent.append(ended - began)
    for number, sequence in list(live.items()):
      is_drawn = sequence.is_drawing or sequence.reason is not None
      if is_drawn and np.isnan(first[number]):
        first[number] = ended - seconds[number]
      if sequence.reason is not None:
        del live[number]
  return first, np.array(features), np.array(spent)


def measure(
  settings: fleet_settings.FleetSettings, note: Callable[[str], None]
) -> Iterator[report.Table]:
  """Yields the law of a model's rounds, or what a load on a clock compares.

  Raises:
    app.UsageError, ValueError: name a flag, and what would be right.
  """
  flags.need(model=settings.model)
  model, count, clock = settings.model, settings.count, settings.clock
  if settings.calibrate:
    path = pathlib.Path(settings.out)
    yield show_law(calibrate(model, path, settings.plan.rows, count, clock))
    print(f'Written: {path}')
    return
  flags.need(engine=settings.engine)
  engine = calibration.read(settings.engine)
  yield compare(model, engine, settings.loads, count, note, clock=clock)


def calibrate(
  path: str, out: pathlib.Path, rows: int, count: int, clock: str = 'wall'
) -> calibration.Engine:
  """Measures a model's rounds and writes engine.json.

  Half of the requests come at once, the others one by one, so that rounds with
  few rows and with many are measured.
  """
  engine, loaded = open_engine(path, rows)
  vocabulary, length = loaded.config.vocab_size, engine.decoder.length
  _, requests = draw(count, vocabulary, length, seed=0)
  half = len(requests) // 2
  parts = [serve(engine, np.zeros(half), requests[:half], clock)]
  for begin in range(half, len(requests), 2):
    group = requests[begin : begin + 2]
    parts.append(serve(engine, np.zeros(len(group)), group, clock))
  law, residuals = calibration.fit(
    np.concatenate([part[1] for part in parts]),
    np.concatenate([part[2] for part in parts]),
  )
  found = calibration.Engine(
    load.digest(loaded),
    loaded.origin,
    law,
    sizes_of(engine),
    tuple(engine.rounds.shapes),
    residuals,
  )
  calibration.write(out, found)
  return found


def show_law(engine: calibration.Engine) -> report.Table:
  """Returns a table of a calibration."""
  found = engine.residuals
  rows = [
    [f'law.{name}, s', f'{value:.3g}']
    for name, value in engine.law._asdict().items()
  ]
  rows += [
    ['rounds', f'{found.rounds}, {found.left_out} left out of the fit'],
    ['off, median and p90', f'{found.median:.1%}, {found.p90:.1%}'],
    ['off, sum', f'{found.bias:+.1%}'],
  ]
  title = f'{engine.origin}, {engine.sizes.rows} rows'
  return report.Table(rows, ('', 'value'), title)


def compare(
  path: str,
  engine_file: calibration.Engine,
  loads: Sequence[float],
  count: int,
  note: Callable[[str], None] = lambda what: None,
  seed: int = 1,
  clock: str = 'wall',
) -> report.Table:
  """Serves Poisson loads on a clock, twice, and in the simulator.

  The requests are others than those that the law was fitted to.

  Raises:
    ValueError: the calibration is another model's.
  """
  engine_file.check_model(load.digest(load.from_anywhere(path)))
  law, sizes = engine_file.law, engine_file.sizes
  setup = simulator.Setup(1, 'random', law, sizes, engine_file.shapes)
  engine, loaded = open_engine(path, sizes.rows)
  if sizes_of(engine) != sizes:
    raise ValueError(f'engine: has {sizes}; this one {sizes_of(engine)}.')
  size = loaded.config.vocab_size, engine.decoder.length
  rows = []
  for part in loads:
    trace, requests = draw(count, *size, seed)
    busy, _ = simulator.simulate_trace(setup, trace)
    rng = np.random.default_rng((seed, 22))
    gaps = -np.log1p(-rng.random(count)) * busy.seconds / count / part
    trace = trace._replace(seconds=np.cumsum(gaps))
    _, found = simulator.simulate_trace(setup, trace)
    simulated = found['first_token'] - found['seconds']
    measured = []
    for _ in range(2):
      fresh, _ = open_engine(path, sizes.rows)
      measured.append(serve(fresh, trace.seconds, requests, clock)[0])
    for name, share in (('p50', 0.5), ('p99', 0.99)):
      rows.append(_compare_row(part, name, share, simulated, measured))
    note(f'load {part:g}')
  columns = 'load', '', 'simulated, s', 'measured, s', '95 %', 'again, s', 'off'
  title = f'{loaded.origin}: {count} requests per load'
  return report.Table(rows, columns, title)


def _compare_row(
  part: float, name: str, share: float, simulated: np.ndarray, measured: Any
) -> list[str]:
  found = float(np.quantile(simulated, share))
  one, again = (float(np.quantile(each, share)) for each in measured)
  rng = np.random.default_rng(0)
  draws = rng.choice(measured[0], (2_000, len(measured[0])))
  low, high = statistics.percentiles(np.quantile(draws, share, axis=1))
  return [
    f'{part:g}',
    name,
    f'{found:.3f}',
    f'{one:.3f}',
    f'{low:.3f}–{high:.3f}',
    f'{again:.3f}',
    f'{found / one - 1:+.0%}',
  ]
