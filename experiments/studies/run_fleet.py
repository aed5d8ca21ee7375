"""Runs what the command `fleet` asks for, and prints it."""

from collections.abc import Iterable
import pathlib

from kaiju_jax.experiments.studies import error_budget
from kaiju_jax.experiments.studies import fleet
from kaiju_jax.experiments.studies import fleet_settings
from kaiju_jax.experiments.studies import price_of_slo
from kaiju_jax.fleet import calibration
from kaiju_jax.reporting import report
from kaiju_jax.runs import flags
from kaiju_jax.serving.routing import policies
from kaiju_jax.storage import files


def run(settings: fleet_settings.FleetSettings) -> None:
  """Runs the simulations or the measurement.

  Raises:
    app.UsageError, ValueError: name a flag, and what would be right.
  """
  for name in ('json', 'out'):
    flags.refuse_address(name, getattr(settings, name))
  if settings.calibrate or settings.wall_clock:
    _measure(settings)
  elif settings.closed_forms:
    _print([fleet.show_closed_forms(noted=_note)], settings)
  else:
    _simulate(settings)


def _simulate(settings: fleet_settings.FleetSettings) -> None:
  engine = calibration.read(settings.engine) if settings.engine else None
  plan = settings.plan
  chosen = flags.choose('policies', settings.policies, policies.NAMES)
  what = plan, chosen, settings.zipf, settings.seeds
  if settings.price_of_slo is not None:
    slos = settings.price_of_slo
    _print(price_of_slo.show(*what, slos, engine, _note), settings)
    return
  if settings.error_budget is not None:
    known = fleet_settings.DRILLS[1:]
    drills = flags.choose('error_budget', settings.error_budget, known)
    _print(error_budget.show(*what, drills, engine, _note), settings)
    return
  runs = fleet.study(*what, engine, _note)
  _print(fleet.show(runs, plan.slo), settings)
  if settings.json:
    path = pathlib.Path(settings.json)
    files.write_json(path, fleet.as_json(plan, runs))
    print(f'Written: {path}')


def _measure(settings: fleet_settings.FleetSettings) -> None:
  """Measures the rounds of a model, or serves it on a clock."""
  # It imports jax, which simulations do without.
  from kaiju_jax.experiments.studies import fleet_calibration

  flags.need(model=settings.model)
  model, count, clock = settings.model, settings.count, settings.clock
  if settings.calibrate:
    rows, path = settings.plan.rows, pathlib.Path(settings.out)
    engine = fleet_calibration.calibrate(model, path, rows, count, clock=clock)
    _print([fleet_calibration.show_law(engine)], settings)
    print(f'Written: {path}')
    return
  flags.need(engine=settings.engine)
  engine = calibration.read(settings.engine)
  table = fleet_calibration.compare(
    model, engine, settings.loads, count, _note, clock=clock
  )
  _print([table], settings)


def _note(what: str) -> None:
  print(f'done: {what}', flush=True)


def _print(
  tables: Iterable[report.Table], settings: fleet_settings.FleetSettings
) -> None:
  """Prints each table as soon as it is there."""
  for table in tables:
    report.Report().add(table).show(as_markdown=settings.markdown)
