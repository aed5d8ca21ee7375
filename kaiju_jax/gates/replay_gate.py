"""Gates of a replay: whether caches keep enough of the prompts' tokens.

Source 003 blocks a change that lets the hit rate fall below 50 %, "until the
cache warm-up period is included in the rollout plan".
"""

from collections.abc import Mapping
import math

from kaiju_jax.fleet import changes
from kaiju_jax.fleet import replay
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import report

LEAST = 0.5
_COLUMNS = (
  'step',
  'requests',
  'of them changed',
  'hits, % of tokens',
  "the changed ones' hits, %",
)


def judge_caches(
  found: Mapping[str, replay.Result], least: float = LEAST
) -> decision_lib.Decision:
  """Decides whether the engine's prefix tree has enough of each trace.

  Args:
    found: results by the trace's name; caches other than 'points' do not count.
    least: the fraction of all prompt tokens, at each memory.
  """
  rates = {
    f'{name}, 1/{1 / row.fraction:.0f} of the memory': row.rates['points']
    for name, result in found.items()
    for row in result.rows
    if 'points' in row.rates
  }
  return _decide('hits', rates, least)


def judge_changes(
  found: Mapping[str, changes.Found], least: float = LEAST
) -> decision_lib.Decision:
  """Decides whether hits stay high enough while a change comes, and after it.

  Each step counts with all of its requests, and the time after the last one
  with those that have the change: otherwise a small share would hide a change
  that lets nothing be cached.

  Args:
    found: replays by the trace's name.
    least: the fraction of prompt tokens.
  """
  rates = {}
  for name, one in found.items():
    for step in one.steps:
      rates[f'{name}, a share of {step.share:g}'] = step.rate
    rates[f'{name}, what has the change, after it'] = one.after.own_rate
  return _decide('change', rates, least)


def _decide(
  name: str, rates: Mapping[str, float], least: float
) -> decision_lib.Decision:
  checks = []
  for what, rate in rates.items():
    if math.isnan(rate):
      checks.append(decision_lib.abstain(f'{what}: no request came.'))
      continue
    reason = f'{100 * rate:.1f} % of the tokens, less than {100 * least:g}.'
    checks.append(decision_lib.refuse_if(rate < least, f'{what}: {reason}'))
  return decision_lib.decide(name, checks, {'rates': rates}, {})


def change_table(name: str, found: changes.Found) -> report.Table:
  """Returns the table of a change's steps."""
  rows = [('before', found.before)]
  rows += [(f'{100 * one.share:g} %', one) for one in found.steps]
  rows += [('after', found.after)]
  return report.Table(
    [
      (label, one.requests, one.changed, _percent(one.rate), _percent(own))
      for label, one in rows
      for own in [one.own_rate]
    ],
    _COLUMNS,
    f'{name}: {found.warmed:,} tokens of prefixes warmed before',
  )


def _percent(rate: float) -> str:
  return '–' if math.isnan(rate) else f'{100 * rate:.1f}'
