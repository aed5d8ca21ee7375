"""Which routing policy keeps the first token's time and the cache's hits?

    python -m experiments.fleet [--policies=sticky,bounded] [--zipf=0.8,1.0,1.2]
        [--seeds=0,1,2] [--replicas=12] [--rate=58] [--sessions=250000]
        [--drill=lost] [--engine=engine.json] [--slo=2.5] [--json=PATH]
    python -m experiments.fleet --price_of_slo=0.5,1,2.5,10 [--policies=sticky]
    python -m experiments.fleet --error_budget=lost,table [--policies=sticky]
    python -m experiments.fleet --closed_forms
    python -m experiments.fleet --calibrate --model=RUN --out=engine.json
    python -m experiments.fleet --wall_clock --model=RUN --engine=engine.json

Simulates sessions with characters on a fleet of replicas that go in rounds as
the engine does, each with a prefix cache of both pools, behind a router that
calls `serving/routing/policies.pick`. Prints times to the first token, tokens
per second, hit rates and how busy the replicas are, with the range over seeds.
--price_of_slo finds the fewest replicas with which each policy bears the same
sessions at these p99s of the first token. --error_budget finds how much of the
43 minutes that a promise of 99.9 % leaves a month each drill spends. --gate
adds the seconds for which gates read a message before an engine has it.

The law of a round is an H100's ceilings, --slower times over, which no device
has confirmed, or a measured engine's: --calibrate measures rounds of a model
here and fits the law; --wall_clock serves one load on the wall clock and in the
simulator. --closed_forms holds the simulator to Erlang's C and to Che.

Needs numba (extra `fleet`). docs/fleet_simulation.md says what is left out.
"""

from collections.abc import Sequence
import pathlib

from absl import flags

from kaiju_jax.runs import command
from kaiju_jax.storage import addresses

_POLICIES = flags.DEFINE_list('policies', None, 'Which policies; all if unset.')
_ZIPF = flags.DEFINE_list(
  'zipf', ['0.8', '1.0', '1.2'], "Exponents of the characters' popularity."
)
_SEEDS = command.define_seeds(text='Seeds of the sessions.')
_REPLICAS = flags.DEFINE_integer('replicas', 12, 'Replicas of the fleet.', 1)
_ROWS = flags.DEFINE_integer('rows', 64, 'Rows of a replica.', 1)
_RATE = flags.DEFINE_float('rate', 58.0, 'Sessions that begin per second.', 0.0)
_SESSIONS = flags.DEFINE_integer('sessions', 250_000, 'How many begin.', 1)
_PEAK = flags.DEFINE_float(
  'peak', 1.0, "Rate at the day's peak over the mean.", 1.0, 2.0
)
_MESSAGES = flags.DEFINE_float('messages', 8.0, 'Requests of a session.', 1.0)
_CHARACTERS = flags.DEFINE_integer('characters', 100_000, 'How many.', 1)
_PRESET = flags.DEFINE_string('preset', '13b', 'Whose pages are counted.')
_SLOWER = flags.DEFINE_float(
  'slower', 2.0, "By how much an engine is slower than a chip's ceilings.", 0.1
)
_DRILL = flags.DEFINE_enum(
  'drill',
  'none',
  ['none', 'lost', 'drained', 'cold', 'warm', 'table'],
  'What happens to a replica, or to the table of sessions, half-way.',
)
_WARM_UP = flags.DEFINE_float(
  'warm_up', 1_200.0, 'Seconds before first tokens count.', 0.0
)
_SLO = flags.DEFINE_float('slo', 2.5, 'Seconds of p99 that are allowed.', 0.0)
_PRICE = flags.DEFINE_list(
  'price_of_slo', None, 'SLOs, in seconds, whose replicas to find instead.'
)
_BUDGET = flags.DEFINE_list(
  'error_budget', None, 'Drills whose part of a month to find instead.'
)
_GATE = flags.DEFINE_float(
  'gate', 0.0, 'Seconds of the gates before an engine has a message.', 0.0
)
_ENGINE = flags.DEFINE_string('engine', None, 'A calibration, engine.json.')
_CLOSED = flags.DEFINE_bool(
  'closed_forms', False, 'Compare with closed forms instead.'
)
_CALIBRATE = flags.DEFINE_bool(
  'calibrate', False, 'Measure rounds of --model and fit their law instead.'
)
_WALL_CLOCK = flags.DEFINE_bool(
  'wall_clock', False, 'Serve --model on the wall clock and compare instead.'
)
_MODEL = flags.DEFINE_string('model', None, 'A workdir, export or folder.')
_COUNT = flags.DEFINE_integer('count', 200, 'Requests of a measurement.', 10)
_LOADS = flags.DEFINE_list(
  'loads', ['0.3', '0.6', '0.8'], 'Loads of --wall_clock.'
)
_CLOCK = flags.DEFINE_enum(
  'clock',
  'wall',
  ['wall', 'processor'],
  'Of --calibrate and --wall_clock: processor counts the seconds of this'
  ' process alone, where others share the cores; pin it to one core.',
)
_OUT = flags.DEFINE_string('out', 'engine.json', 'Where a calibration goes.')
_MARKDOWN = flags.DEFINE_bool('markdown', False, 'Print tables in Markdown.')
_JSON = flags.DEFINE_string('json', None, 'Where the figures go as JSON.')


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  for flag in (_JSON, _OUT):
    if flag.value:
      addresses.refuse(flag.value, f'--{flag.name}={flag.value}')
  if _CALIBRATE.value or _WALL_CLOCK.value:
    _measure(argv)
    return
  from kaiju_jax.experiments.studies import fleet

  if _CLOSED.value:
    _print([fleet.show_closed_forms(noted=_note)])
    return
  from kaiju_jax.serving.routing import policies
  from kaiju_jax.storage import files

  engine = _read_engine() if _ENGINE.value else None
  plan = fleet.Plan(
    replicas=_REPLICAS.value,
    rows=_ROWS.value,
    rate=_RATE.value,
    sessions=_SESSIONS.value,
    peak=_PEAK.value,
    messages=_MESSAGES.value,
    characters=_CHARACTERS.value,
    preset=_PRESET.value,
    slower=_SLOWER.value,
    drill=_DRILL.value,
    warm_up=_WARM_UP.value,
    slo=_SLO.value,
    gate=_GATE.value,
  )
  what = (
    command.choose(_POLICIES, policies.NAMES),
    command.numbers(_ZIPF, float),
    command.seeds(_SEEDS),
  )
  if _PRICE.value is not None:
    from kaiju_jax.experiments.studies import price_of_slo

    slos = command.numbers(_PRICE, float)
    _print(price_of_slo.show(plan, *what, slos, engine, _note))
    return
  if _BUDGET.value is not None:
    from kaiju_jax.experiments.studies import error_budget

    drills = command.choose(_BUDGET, fleet.DRILLS[1:])
    _print(error_budget.show(plan, *what, drills, engine, _note))
    return
  runs = fleet.study(plan, *what, engine, _note)
  _print(fleet.show(runs, _SLO.value))
  if _JSON.value:
    path = pathlib.Path(_JSON.value)
    files.write_json(path, fleet.as_json(plan, runs))
    print(f'Written: {path}')


def _read_engine():
  from kaiju_jax.fleet import calibration

  return calibration.read(pathlib.Path(_ENGINE.value))


def _measure(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL)
  from kaiju_jax.experiments.studies import fleet_calibration

  if _CALIBRATE.value:
    engine = fleet_calibration.calibrate(
      _MODEL.value,
      pathlib.Path(_OUT.value),
      _ROWS.value,
      _COUNT.value,
      clock=_CLOCK.value,
    )
    _print([fleet_calibration.show_law(engine)])
    print(f'Written: {_OUT.value}')
    return
  command.check(argv, _ENGINE)
  loads = command.numbers(_LOADS, float, below=1.0)
  _print(
    [
      fleet_calibration.compare(
        _MODEL.value,
        _read_engine(),
        loads,
        _COUNT.value,
        _note,
        clock=_CLOCK.value,
      )
    ]
  )


def _note(what: str) -> None:
  print(f'done: {what}', flush=True)


def _print(tables) -> None:
  from kaiju_jax.reporting import report

  for title, columns, rows in tables:
    page = report.Report().table(rows, columns, title)
    page.show(as_markdown=_MARKDOWN.value)


if __name__ == '__main__':
  command.run(main)
