"""How much of the prompts does the prefix tree have, at which memory?

    python -m experiments.replay [--traffic=people] [--live=40,80]
        [--swipes=.15,.45] [--tiers=mature] [--requests=10000] [--zipf=1.0]
        [--seed=0] [--fractions=1/20,1/40,1/80] [--preset=13b]
        [--caches=points,lru,blocks,foresight] [--least=.5] [--json=PATH]
    python -m experiments.replay --change=build --live=4000 --swipes=.15
        --fractions=1/2 [--plan=.1,.5,1] [--hold=60] [--warm=64] [--open=stay]

Draws a trace per tier, live count and part of swipes, and serves it, without a
model, from an oracle that keeps everything, from the engine's own prefix tree,
from the same tree that evicts what was used least recently, and from pages as
entries of their own, all with a part of the oracle's bytes; beside them stands
a prefix tree that knows the trace and evicts what will be asked for last.
Prints hits, what they are of the oracle's, and which requests miss; with --json
writes them, too. The exit status is 3 if the engine's tree has less than
--least of a trace's tokens.

With --change, half-way in the trace other weights or another format of prompts
come ('build'), or prompts begin with the time, in units of --tick seconds
('clock'): nothing of before can be resumed. --plan lists the shares of the
conversations that have the change, each for --hold seconds; without it all
have it at once. --open=stay lets open conversations end on what they began
with, as `kaiju serve --ray` does; --warm prefills so many characters' prefixes
before. The exit status is 3 if a step has less than --least of the tokens, or
what has the change does afterwards, and 4 if no request came in a step.

--traffic=people is traffic as people make it (`fleet/people.py`); fixed is a
fixed number of conversations, each with somebody of its own
(`fleet/traffic.py`).

Before that it reproduces source 003, whose caches keep characters' prefixes and
nothing of the turns behind them.
"""

from collections.abc import Sequence
import fractions
import pathlib

from absl import flags

from kaiju_jax.reporting import report
from kaiju_jax.runs import command
from kaiju_jax.storage import addresses

_TRAFFIC = flags.DEFINE_enum(
  'traffic', 'people', ['people', 'fixed'], 'Which traffic is drawn.'
)
_TIERS = flags.DEFINE_list('tiers', ['mature'], 'Which tiers of characters.')
_REQUESTS = flags.DEFINE_integer('requests', 10_000, 'Of a trace.', 1)
_LIVE = flags.DEFINE_list(
  'live', ['40', '80'], 'People, or conversations if fixed, alive at a time.'
)
_SWIPES = flags.DEFINE_list(
  'swipes', ['0.15', '0.45'], 'The part of requests that are swipes.'
)
_CHARACTERS = flags.DEFINE_integer('characters', 300, 'Of a tier.', 1)
_ZIPF = flags.DEFINE_float(
  'zipf', 1.0, "Exponent of the characters' popularity.", 0.0
)
_SEED = flags.DEFINE_integer('seed', 0, 'Of the trace.', lower_bound=0)
_FRACTIONS = flags.DEFINE_list(
  'fractions', ['1/20', '1/40', '1/80'], "Of the oracle's bytes."
)
_LOCAL = flags.DEFINE_float(
  'local',
  None,
  "The part of the tree's bytes that local pages get; by default that at which"
  ' both kinds are used up at once (decoding/pages/recording.py).',
  0.0,
  1.0,
)
_CACHES = flags.DEFINE_list('caches', None, 'Which caches; all by default.')
_PRESET = flags.DEFINE_string('preset', '13b', 'Whose pages are counted.')
_LEAST = flags.DEFINE_float(
  'least', 0.5, 'The fraction of tokens below which it refuses.', 0.0, 1.0
)
_CHANGE = flags.DEFINE_enum(
  'change', None, ['build', 'clock'], 'Which change comes half-way.'
)
_PLAN = flags.DEFINE_list(
  'plan', ['1'], 'The shares of conversations that have the change.'
)
_HOLD = flags.DEFINE_float('hold', 60.0, 'Seconds of each share.', 1.0)
_WARM = flags.DEFINE_integer('warm', 0, 'Prefixes that are prefilled.', 0)
_OPEN = flags.DEFINE_enum(
  'open', 'move', ['move', 'stay'], 'What open conversations do.'
)
_TICK = flags.DEFINE_float('tick', 1.0, "The clock's smallest unit, s.", 0.001)
_JSON = flags.DEFINE_string('json', None, 'Where the figures go as JSON.')


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  parts = _parts()
  if _CHANGE.value:
    _run_change(_traces(), parts)
  else:
    _run(_traces(), parts)


def _traces() -> dict:
  """Returns the parameters of each trace, by name."""
  from kaiju_jax.fleet import people
  from kaiju_jax.fleet import traffic

  law = people.People if _TRAFFIC.value == 'people' else traffic.Traffic
  return {
    f'{tier}, {live} live, {swipes:g} swipes': law(
      seed=_SEED.value,
      requests=_REQUESTS.value,
      characters=_CHARACTERS.value,
      zipf=_ZIPF.value,
      live=live,
      swipes=swipes,
      prefix=traffic.TIERS[tier],
    )
    for tier in command.choose(_TIERS, traffic.TIERS)
    for live in command.numbers(_LIVE, int)
    for swipes in command.numbers(_SWIPES, float, below=1.0)
  }


def _parts() -> list[float]:
  parts = []
  for text in _FRACTIONS.value:
    try:
      parts.append(float(fractions.Fraction(text)))
    except (ValueError, ZeroDivisionError):
      parts.append(0.0)
    if not 0 < parts[-1] <= 1:
      raise ValueError(f'--fractions: {text!r} is no fraction; write 1/20.')
  if _JSON.value:
    addresses.refuse(_JSON.value, f'--json={_JSON.value}')
  return parts


def _run(traces: dict, parts: list[float]) -> None:
  from kaiju_jax.fleet import replay
  from kaiju_jax.gates import replay_gate
  from kaiju_jax.model import presets
  from kaiju_jax.reporting import decision

  chosen = command.choose(_CACHES, replay.CACHES)
  sizes = replay.sizes_of(presets.preset(_PRESET.value))
  _source(replay, sizes)
  found = {}
  for name, requests, say in _each(traces):
    found[name] = replay.replay(
      requests,
      sizes,
      parts,
      _LOCAL.value,
      lambda what, name=name, say=say: say(f'{name}: {what} done'),
      chosen,
    )
    tables = _tables(replay, name, found[name], requests[-1].seconds)
    report.Report().add(*tables).show()
  if _JSON.value:
    _write(replay, found)
  if 'points' in chosen:
    decision.finish(replay_gate.judge_caches(found, _LEAST.value))


def _each(traces: dict):
  """Yields each trace's name, its requests, and what shows how far it is."""
  from kaiju_jax.fleet import people
  from kaiju_jax.fleet import texts
  from kaiju_jax.fleet import traffic
  from kaiju_jax.training import progress

  for name, drawn in traces.items():
    text = f'{name}: drawing {_REQUESTS.value:,} requests'
    with progress.status(text) as say:
      if isinstance(drawn, people.People):
        requests = list(texts.requests(people.draw(drawn)))
      else:
        requests = list(traffic.trace(drawn))
      yield name, requests, say


def _run_change(traces: dict, parts: list[float]) -> None:
  from kaiju_jax.fleet import caches
  from kaiju_jax.fleet import changes
  from kaiju_jax.fleet import replay
  from kaiju_jax.gates import replay_gate
  from kaiju_jax.model import presets
  from kaiju_jax.reporting import decision
  from kaiju_jax.serving.routing import rollout
  from kaiju_jax.storage import files

  shares = tuple(command.numbers(_PLAN, float))
  plan = rollout.Plan(shares=shares, hold=_HOLD.value)
  sizes = replay.sizes_of(presets.preset(_PRESET.value))
  found = {}
  for name, requests, say in _each(traces):
    memory = replay.oracle_bytes(requests, sizes)
    for part in parts:
      label = f'{name}, 1/{1 / part:.0f} of the memory'
      say(label)
      found[label] = changes.replay_change(
        requests,
        caches.Points(sizes, part * memory, _LOCAL.value),
        _CHANGE.value,
        plan,
        _WARM.value,
        _OPEN.value == 'stay',
        _TICK.value,
      )
      table = replay_gate.change_table(label, found[label])
      report.Report().add(table).show()
  made = replay_gate.judge_changes(found, _LEAST.value)
  if _JSON.value:
    files.write_json(pathlib.Path(_JSON.value), made.figures)
  decision.finish(made)


def _source(replay, sizes) -> None:
  rates = replay.prefix_hit_rates(sizes, 6_144, (4_096, 10_240, 64))
  print(
    'Prefixes alone, as in source 003 (6k tokens): '
    + ', '.join(
      f'{behind} behind it {100 * rate:.1f} % (source: {claimed})'
      for behind, rate, claimed in zip(
        ('4k', '10k', '64'), rates, ('60 %', '37.5 %', '~100 %')
      )
    )
  )


def _tables(replay, name: str, result, seconds: float):
  rates, causes = [], []
  for row in result.rows:
    memory = f'{row.memory / 2**30:.2f} GiB (1/{1 / row.fraction:.0f})'
    shares = replay.share(row, result)
    rates.append(
      [memory]
      + [
        f'{100 * rate:.2f} % ({shares[x]:.4f})' for x, rate in row.rates.items()
      ]
    )
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


def _write(replay, found: dict) -> None:
  from kaiju_jax.storage import files

  files.write_json(
    pathlib.Path(_JSON.value),
    {
      name: {
        **result._asdict(),
        'rows': [
          {**row._asdict(), 'of_oracle': replay.share(row, result)}
          for row in result.rows
        ],
      }
      for name, result in found.items()
    },
  )


if __name__ == '__main__':
  command.run(main)
