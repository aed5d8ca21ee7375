"""The report of `experiments.refusal`: Markdown tables, and their figures."""

from collections.abc import Iterable
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
  """What `experiments.refusal` found.

  Attributes:
    stage: thresholds and their counts per tier.
    slices: counts by tier and category.
    raised: thresholds that would bring refusals back; empty if not asked for.
    changes: against an older version; empty without one.
    replay: of a log of blocked texts; None without one.
    confidence: the confidence of the claims about both tiers together.
  """

  stage: thresholds.Stage
  slices: tuple[refusal.Slice, ...]
  raised: tuple[refusal.Raised, ...]
  changes: tuple[refusal.Change, ...]
  replay: blocked.Replay | None
  confidence: float

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
        'needed': refusal.sizes(self.confidence),
      }
    )


def write(title: str, found: Findings, decision: decision_lib.Decision) -> str:
  """Returns the report in Markdown."""
  return '\n'.join(_lines(title, found, decision)) + '\n'


def _lines(title, found: Findings, decision) -> Iterator[str]:
  yield f'# {title}'
  yield ''
  yield ' '.join((f'**{decision.status.capitalize()}.**', *decision.reasons))
  yield ''
  yield (
    'Bounds are exact (Clopper–Pearson), one-sided; both tiers together have a'
    f' confidence of {found.confidence:.0%}.'
  )
  yield ''
  rows = [
    (tier, *_counts(found.stage.for_tier(tier))) for tier in thresholds.TIERS
  ]
  yield report.Table(rows, ('tier', *_COLUMNS)).markdown()
  yield ''
  yield from _sizes(found.confidence)
  if any(one.category for one in found.slices):
    yield ''
    yield from _slices(found)
  if found.raised:
    yield ''
    yield from _raised(found.raised)
  if found.changes:
    yield ''
    yield from _changes(found.changes)
  if found.replay:
    yield ''
    yield _replay(found.replay)


_COLUMNS = (
  'adversarial',
  'refused',
  'at least',
  'benign',
  'refused',
  'at most',
)


def _counts(tier: thresholds.Tier) -> Iterator[str]:
  (limit,) = tier.limits
  for one in limit.blocked, limit.refused:
    yield from (f'{one.rows}', f'{one.hits}', f'{one.bound:.2%}')


def _tier_figures(tier: thresholds.Tier) -> dict[str, Any]:
  (limit,) = tier.limits
  return {
    'adversarial': vars(limit.blocked),
    'benign': vars(limit.refused),
  }


def _sizes(confidence: float) -> Iterator[str]:
  needed = refusal.sizes(confidence)
  rates = ', '.join(
    f'{needed[f"{rate:.1%}"]:,} at {rate:.1%}' for rate in refusal.RATES
  )
  yield (
    f'A classifier without a mistake is certified by {needed["none"]} texts of'
    f' each set and tier in the half that counts. One that refuses some benign'
    f' texts is certified {refusal.POWER:.0%} of the time by so many of them:'
    f' {rates}.'
  )


def _slices(found: Findings) -> Iterator[str]:
  level = thresholds.confidence_of_tier(found.confidence)
  rows = []
  for one in found.slices:
    told = '–'
    if one.pairs[0]:
      least = statistics.at_least(one.pairs[1], one.pairs[0], level)
      told = f'{one.pairs[1]} of {one.pairs[0]}, at least {least:.1%}'
    rows.append(
      (
        one.tier,
        one.category or '–',
        *_side(one.adversarial, statistics.at_least, level),
        *_side(one.benign, statistics.at_most, level),
        told,
      )
    )
  columns = ('tier', 'category', *_COLUMNS, 'pairs told apart')
  yield 'By category (nothing is decided on these; each bound stands alone):'
  yield ''
  yield report.Table(rows, columns).markdown()


def _side(counts, bound, level) -> Iterator[str]:
  texts, hits = counts
  yield f'{texts}'
  yield f'{hits}' if texts else '–'
  yield f'{bound(hits, texts, level):.2%}' if texts else '–'


def _raised(raised: Iterable[refusal.Raised]) -> Iterator[str]:
  yield (
    'Raised thresholds, which bring benign refusals back to what is allowed,'
    ' and what they let through. A server takes thresholds only from a training'
    ' command that certified them.'
  )
  yield ''
  rows = []
  for one in raised:
    high = ', '.join(
      f'{stage} {name} {value:.3g}'
      for stage, limits in one.high.items()
      for name, value in limits.items()
    )
    rows.append((one.tier, f'{one.by:.2f}', high, *_counts(one.counts)))
  yield report.Table(
    rows, ('tier', 'raised by, logits', 'thresholds', *_COLUMNS)
  ).markdown()


def _changes(changes: Iterable[refusal.Change]) -> Iterator[str]:
  yield 'Against the older version, with the thresholds that each serves:'
  yield ''
  yield report.Table(
    [
      (x.tier, x.kind, x.texts, x.gained, x.lost, f'{x.p:.2g}') for x in changes
    ],
    ('tier', 'set', 'texts', 'newly refused', 'no longer refused', 'p'),
  ).markdown()


def _replay(found: blocked.Replay) -> str:
  return (
    f'A gate had blocked {found.rows:,} logged texts. Version'
    f' {found.version[:12]} blocks {found.blocked:,} of them'
    f' ({found.moved:,} for another dimension) and lets'
    f' {len(found.passed):,} pass. Other stages had'
    f' blocked {found.others:,} more, which are not judged.'
  )
