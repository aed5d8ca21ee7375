"""Replays drawn traffic through caches, or a change of what they hold."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import fractions
import pathlib

from kaiju_jax.experiments.studies import fleet_settings
from kaiju_jax.fleet import caches
from kaiju_jax.fleet import changes
from kaiju_jax.fleet import people
from kaiju_jax.fleet import replay
from kaiju_jax.fleet import traffic
from kaiju_jax.gates import replay_gate
from kaiju_jax.model import presets
from kaiju_jax.reporting import decision
from kaiju_jax.reporting import report
from kaiju_jax.runs import flags
from kaiju_jax.serving.routing import rollout
from kaiju_jax.storage import files
from kaiju_jax.training import progress


def run(settings: fleet_settings.ReplaySettings) -> None:
  """Prints what each cache has of each trace, and exits with the decision.

  Raises:
    SystemExit: see `decision.finish`.
    ValueError: names a flag, its value and what would be right.
  """
  parts = [_fraction(text) for text in settings.fractions]
  flags.refuse_address('json', settings.json)
  chosen = flags.choose('caches', settings.caches, replay.CACHES)
  sizes = replay.sizes_of(presets.preset(settings.preset))
  if settings.change:
    _replay_changes(settings, parts, sizes)
  else:
    _replay(settings, parts, sizes, chosen)


def _fraction(text: str) -> float:
  try:
    part = float(fractions.Fraction(text))
  except (ValueError, ZeroDivisionError):
    part = 0.0
  if not 0 < part <= 1:
    raise ValueError(f'--fractions: {text!r} is no fraction; write 1/20.')
  return part


def _draw(
  settings: fleet_settings.ReplaySettings,
) -> Iterator[tuple[str, list[traffic.Request], Callable[[str], None]]]:
  """Yields each trace's name, its requests, and what shows how far it is."""
  for tier in settings.tiers:
    for live in settings.live:
      for swipes in settings.swipes:
        name = f'{tier}, {live} live, {swipes:g} swipes'
        fields = {
          'seed': settings.seed,
          'requests': settings.requests,
          'characters': settings.characters,
          'zipf': settings.zipf,
          'live': live,
          'swipes': swipes,
          'prefix': traffic.TIERS[tier],
        }
        text = f'{name}: drawing {settings.requests:,} requests'
        with progress.status(text) as say:
          if settings.traffic == 'people':
            drawn = people.draw_texts(people.draw(people.People(**fields)))
          else:
            drawn = traffic.trace(traffic.Traffic(**fields))
          yield name, list(drawn), say


def _replay(
  settings: fleet_settings.ReplaySettings,
  parts: Sequence[float],
  sizes: caches.CacheSizes,
  chosen: Sequence[str],
) -> None:
  _show_source(sizes)
  found = {}
  for name, requests, say in _draw(settings):
    found[name] = replay.replay(
      requests,
      sizes,
      parts,
      settings.local,
      lambda what, name=name, say=say: say(f'{name}: {what} done'),
      chosen,
    )
    tables = _tables(name, found[name], requests[-1].seconds)
    report.Report().add(*tables).show()
  if settings.json:
    _write(settings.json, found)
  if 'points' in chosen:
    decision.finish(replay_gate.judge_caches(found, settings.least))


def _replay_changes(
  settings: fleet_settings.ReplaySettings,
  parts: Sequence[float],
  sizes: caches.CacheSizes,
) -> None:
  plan = rollout.Plan(shares=settings.plan, hold=settings.hold)
  found = {}
  for name, requests, say in _draw(settings):
    memory = replay.oracle_bytes(requests, sizes)
    for part in parts:
      label = f'{name}, 1/{1 / part:.0f} of the memory'
      say(label)
      found[label] = changes.replay_change(
        requests,
        caches.Points(sizes, part * memory, settings.local),
        settings.change,
        plan,
        settings.warm,
        settings.open == 'stay',
        settings.tick,
      )
      table = replay_gate.change_table(label, found[label])
      report.Report().add(table).show()
  made = replay_gate.judge_changes(found, settings.least)
  if settings.json:
    files.write_json(pathlib.Path(settings.json), made.figures)
  decision.finish(made)


def _show_source(sizes: caches.CacheSizes) -> None:
  rates = replay.prefix_hit_rates(sizes, 6_144, (4_096, 10_240, 64))
  claims = ('4k', '60 %'), ('10k', '37.5 %'), ('64', '~100 %')
  print(
    'Prefixes alone, as in source 003 (6k tokens): '
    + ', '.join(
      f'{behind} behind it {100 * rate:.1f} % (source: {claimed})'
      for (behind, claimed), rate in zip(claims, rates)
    )
  )


def _tables(
  name: str, result: replay.Result, seconds: float
) -> Iterator[report.Table]:
  rates, causes = [], []
  for row in result.rows:
    memory = f'{row.memory / 2**30:.2f} GiB (1/{1 / row.fraction:.0f})'
    shares = replay.share(row, result)
    hits = [f'{100 * x:.2f} % ({shares[y]:.4f})' for y, x in row.rates.items()]
    rates.append([memory, *hits])
    causes += [
      (memory, cache, *(f'{100 * lost[x]:.2f}' for x in replay.CAUSES))
      for cache, lost in row.missing.items()
    ]
  yield report.Table(
    rates,
    ('memory', *result.rows[0].rates),
    f'{name}: {result.tokens / 1e6:.1f} M tokens of prompts in'
    f' {seconds / 3600:.0f} h; oracle {100 * result.oracle:.2f} % in'
    f" {result.memory / 2**30:.1f} GiB; hits (of the oracle's)",
  )
  heads = (f'{cause} ({result.causes[cause]})' for cause in replay.CAUSES)
  yield report.Table(
    causes,
    ('memory', 'cache', *heads),
    f"{name}: missing, in % of the oracle's hits (requests)",
  )


def _write(path: str, found: dict[str, replay.Result]) -> None:
  figures = {
    name: {
      **result._asdict(),
      'rows': [
        {**row._asdict(), 'of_oracle': replay.share(row, result)}
        for row in result.rows
      ],
    }
    for name, result in found.items()
  }
  files.write_json(pathlib.Path(path), figures)
