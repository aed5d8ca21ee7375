"""The report of `experiments.refusal`: Markdown tables, and their figures."""

from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

from kaiju_jax.classifiers import refusal
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.serving.safety import blocked
from kaiju_jax.serving.safety import thresholds


class Findings(NamedTuple):
  """What `experiments.refusal` found."""

  stage: thresholds.Stage  # Thresholds and their counts per tier.
  slices: tuple[refusal.Slice, ...]  # Counts by tier and category.
  raised: tuple[refusal.Raised, ...]  # Empty if not asked for.
  changes: tuple[refusal.Change, ...]  # Empty without an older version.
  replay: blocked.Replay | None  # Of a log of blocked texts; None without one.
  confidence: float  # Of the claims about both tiers together.

  def checks(self) -> Iterator[decision_lib.Check]:
    """Yields what the decision depends on."""
    yield from refusal.checks(self.stage, self.confidence)
    yield from refusal.compare_checks(self.changes)

  def figures(self) -> dict[str, Any]:
    """Returns plain data: counts of a replay, and none of its texts."""
    replay = None
    if self.replay:
      replay = {**self.replay._asdict(), 'passed': len(self.replay.passed)}
    return report.plain(
      {
        'confidence': self.confidence,
        'tiers': {
          tier: _tier_figures(self.stage.for_tier(tier))
          for tier in thresholds.TIERS
        },
        'slices': [one._asdict() for one in self.slices],
        'raised': [
          {**one._asdict(), 'counts': _tier_figures(one.counts)}
          for one in self.raised
        ],
        'changes': [one._asdict() for one in self.changes],
        'replay': replay,
        'needed': refusal.list_needed(self.confidence),
      }
    )


def page(
  title: str, found: Findings, decision: decision_lib.Decision
) -> report.Report:
  """Returns the page of what was found."""
  page = report.Report(title)
  status = f'**{decision.status.capitalize()}.**'
  page.say(' '.join((status, *decision.reasons)))
  page.say(
    'Bounds are exact (Clopper–Pearson), one-sided; both tiers together have a'
    f' confidence of {found.confidence:.0%}.'
  )
  page.table(
    [(tier, *_counts(found.stage.for_tier(tier))) for tier in thresholds.TIERS],
    ('tier', *_COLUMNS),
  )
  page.say(_describe_sizes(found.confidence))
  if any(one.category for one in found.slices):
    page.say(
      'By category (nothing is decided on these; each bound stands alone):'
    )
    level = thresholds.confidence_of_tier(found.confidence)
    rows = [_slice_row(one, level) for one in found.slices]
    page.table(rows, ('tier', 'category', *_COLUMNS, 'pairs told apart'))
  if found.raised:
    page.say(
      'Raised thresholds, which bring benign refusals back to what is allowed,'
      ' and what they let through. A server takes thresholds only from a'
      ' training command that certified them.'
    )
    rows = map(_raised_row, found.raised)
    page.table(rows, ('tier', 'raised by, logits', 'thresholds', *_COLUMNS))
  if found.changes:
    page.say('Against the older version, with the thresholds that each serves:')
    page.table(
      [(*one[:-1], f'{one.p:.2g}') for one in found.changes],
      ('tier', 'set', 'texts', 'newly refused', 'no longer refused', 'p'),
    )
  if found.replay:
    page.say(_describe_replay(found.replay))
  return page


_COLUMNS = 'adversarial', 'refused', 'at least', 'benign', 'refused', 'at most'


def _counts(tier: thresholds.Tier) -> Iterator[Any]:
  (limit,) = tier.limits
  for one in limit.blocked, limit.refused:
    yield from (one.rows, one.hits, f'{one.bound:.2%}')


def _tier_figures(tier: thresholds.Tier) -> dict[str, Any]:
  (limit,) = tier.limits
  return {'adversarial': vars(limit.blocked), 'benign': vars(limit.refused)}


def _describe_sizes(confidence: float) -> str:
  needed = refusal.list_needed(confidence)
  rates = ', '.join(
    f'{needed[f"{rate:.1%}"]:,} at {rate:.1%}' for rate in refusal.RATES
  )
  return (
    f'A classifier without a mistake is certified by {needed["none"]} texts of'
    f' each set and tier in the half that counts. One that refuses some benign'
    f' texts is certified {refusal.POWER:.0%} of the time by so many of them:'
    f' {rates}.'
  )


def _slice_row(one: refusal.Slice, level: float) -> list[Any]:
  told, (pairs, apart) = None, one.pairs
  if pairs:
    least = statistics.at_least(apart, pairs, level)
    told = f'{apart} of {pairs}, at least {least:.1%}'
  cells = [one.tier, one.category or None]
  for (texts, hits), bound in (
    (one.adversarial, statistics.at_least),
    (one.benign, statistics.at_most),
  ):
    counted = (
      (hits, f'{bound(hits, texts, level):.2%}') if texts else (None,) * 2
    )
    cells += [texts, *counted]
  return [*cells, told]


def _raised_row(one: refusal.Raised) -> list[Any]:
  high = ', '.join(
    f'{stage} {name} {value:.3g}'
    for stage, limits in one.high.items()
    for name, value in limits.items()
  )
  return [one.tier, f'{one.by:.2f}', high, *_counts(one.counts)]


def _describe_replay(found: blocked.Replay) -> str:
  return (
    f'A gate had blocked {found.rows:,} logged texts. Version'
    f' {found.version[:12]} blocks {found.blocked:,} of them'
    f' ({found.moved:,} for another dimension) and lets'
    f' {len(found.passed):,} pass. Other stages had'
    f' blocked {found.others:,} more, which are not judged.'
  )
