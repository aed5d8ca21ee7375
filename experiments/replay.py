"""How much of the prompts does the prefix tree have, at which memory?

    python -m experiments.replay [--tiers=public,official,mature]
        [--requests=10000] [--live=40] [--zipf=1.0] [--seed=0]
        [--fractions=1/20,1/40,1/80] [--preset=13b] [--json=PATH]

Draws a trace per tier (`fleet/traffic.py`) and serves it, without a model, from
an oracle that keeps everything, from the engine's own prefix tree, and from
pages as entries of their own, both with a part of the oracle's bytes; beside
them stands a prefix tree that knows the trace and evicts what will be asked for
last. Prints hits, and what they are of the oracle's; with --json writes them,
too.

Before that it reproduces source 003, whose caches keep characters' prefixes and
nothing of the turns behind them.
"""

from collections.abc import Sequence
import fractions
import pathlib

from absl import flags

from kaiju_jax.runs import command
from kaiju_jax.runs import report
from kaiju_jax.storage import addresses

_TIERS = flags.DEFINE_list(
  'tiers', ['public', 'official', 'mature'], 'Which tiers of characters.'
)
_REQUESTS = flags.DEFINE_integer('requests', 10_000, 'Of a tier.', 1)
_LIVE = flags.DEFINE_integer('live', 40, 'Conversations alive at a time.', 1)
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
_PRESET = flags.DEFINE_string('preset', '13b', 'Whose pages are counted.')
_JSON = flags.DEFINE_string('json', None, 'Where the figures go as JSON.')


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  _run(*_checked())


def _checked() -> tuple[list[str], list[float]]:
  from kaiju_jax.fleet import traffic

  tiers = command.choose(_TIERS, traffic.TIERS)
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
  return tiers, parts


def _run(tiers: list[str], parts: list[float]) -> None:
  import rich.console

  from kaiju_jax.fleet import replay
  from kaiju_jax.fleet import traffic
  from kaiju_jax.model import presets
  from kaiju_jax.storage import files

  sizes = replay.sizes_of(presets.preset(_PRESET.value))
  console = rich.console.Console()
  _source(replay, sizes)
  found = {}
  for tier in tiers:
    drawn = traffic.Traffic(
      seed=_SEED.value,
      requests=_REQUESTS.value,
      characters=_CHARACTERS.value,
      zipf=_ZIPF.value,
      live=_LIVE.value,
      prefix=traffic.TIERS[tier],
    )
    with console.status(f'{tier}: drawing {_REQUESTS.value:,} requests') as say:
      requests = list(traffic.trace(drawn))
      found[tier] = replay.replay(
        requests,
        sizes,
        parts,
        _LOCAL.value,
        lambda what, tier=tier, say=say: say.update(f'{tier}: {what} done'),
      )
    console.print(_table(replay, tier, found[tier], requests[-1].seconds))
  if _JSON.value:
    files.write_json(
      pathlib.Path(_JSON.value),
      {tier: _plain(replay, result) for tier, result in found.items()},
    )


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


def _table(replay, tier: str, result, seconds: float):
  rows = []
  for row in result.rows:
    points, blocks, foresight = replay.share(row, result)
    rows.append(
      (
        f'{row.memory / 2**30:.2f} GiB (1/{1 / row.fraction:.0f})',
        *(f'{100 * row.points:.2f} %', f'{points:.4f}'),
        *(f'{100 * row.blocks:.2f} %', f'{blocks:.4f}'),
        *(f'{100 * row.foresight:.2f} %', f'{foresight:.4f}'),
      )
    )
  of_oracle = "of oracle's"
  return report.table(
    (
      *('memory', 'points', of_oracle, 'blocks', of_oracle),
      *('with foresight', of_oracle),
    ),
    rows,
    f'{tier}: {result.tokens / 1e6:.1f} M tokens of prompts in'
    f' {seconds / 3600:.0f} h; oracle {100 * result.oracle:.2f} % in'
    f' {result.memory / 2**30:.1f} GiB',
  )


def _plain(replay, result) -> dict:
  return {
    'tokens': result.tokens,
    'oracle': result.oracle,
    'memory': result.memory,
    'rows': [
      {
        **row._asdict(),
        **dict(
          zip(
            ('points_of_oracle', 'blocks_of_oracle', 'foresight_of_oracle'),
            replay.share(row, result),
          )
        ),
      }
      for row in result.rows
    ],
  }


if __name__ == '__main__':
  command.run(main)
