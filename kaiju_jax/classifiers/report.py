"""Makes the Markdown report of a gate's or a token-level head's training."""

from collections.abc import Sequence
from typing import Any

from kaiju_jax.classifiers import certificate
from kaiju_jax.classifiers import train_gate
from kaiju_jax.classifiers import train_head
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import report
from kaiju_jax.serving.safety import thresholds


def finish(out: str, name: str, version: str, outcome: Any) -> None:
  """Says what was written and whether it is certified.

  Args:
    out: the folder.
    name: of what was trained.
    version: its version.
    outcome: with the `decision`.

  Raises:
    SystemExit: it is not certified; status 3 or 4.
  """
  print(f'{out}: {name} {version[:12]}; see report.md.')
  decision_lib.finish(outcome.decision)


def report_gate(result: train_gate.Result) -> report.Report:
  """Returns the report on a gate."""
  gate, trained = result.gate, result.gate.trained
  page = report.Report(f'Gate {gate.version[:12]}')
  page.say(_verdict(result.outcome))
  each = _each(gate.names, trained.violations)
  page.say(
    f'Trained on {trained.rows:,} texts ({each}) by {trained.library},'
    f' {trained.date}; thresholds chosen on {result.sizes["choose"]:,} and'
    f' counted on {result.sizes["certify"]:,} others. A window of'
    f' {gate.settings.window:,} characters takes'
    f' {result.milliseconds[0]:.2f} ms (median) and'
    f' {result.milliseconds[1]:.2f} ms (99 %) here.'
  )
  _add_counts(page, result.stage)
  page.say(
    "The texts that were counted, in disguise, at the minor's thresholds"
    ' (nothing is claimed of these):'
  )
  return page.table(
    [
      (one.disguise, f'{one.blocked:.2%}', f'{one.refused:.2%}')
      for one in result.passed
    ],
    ('disguise', 'violating, blocked', 'benign, refused'),
  )


def report_head(result: train_head.Result) -> report.Report:
  """Returns the report on a token-level head."""
  page = report.Report(f'Token head {result.version[:12]}')
  page.say(_verdict(result.outcome))
  made = 'Not trained here'
  if result.library:
    rows = result.trained_on
    each = _each(rows.names, rows.label_NC.sum(axis=0))
    made = f'Trained on {len(rows.rows):,} texts ({each}) by {result.library}'
  page.say(
    f'{made}, {result.stage.date}; it reads the hidden states of'
    f' {result.origin}. Thresholds chosen on {result.sizes["choose"]:,} and'
    f' counted on {result.sizes["certify"]:,} other texts, each alone or behind'
    ' a built-in character, as a prompt and as a reply. A text counts as'
    ' blocked if it is blocked in both places, and as refused if it is refused'
    ' in either. Nothing is claimed of long conversations, nor of other'
    ' characters.'
  )
  _add_counts(page, result.stage)
  low = ', '.join(
    f'{limit.name} {limit.low:.3g}' for limit in result.stage.minor.limits
  )
  return page.say(
    "Of the replies that were counted, at the minor's thresholds (nothing is"
    f' claimed of these): {result.at_once:.1%} of the benign tokens are below'
    f' low ({low}) and released at once; {result.shown:.1%} of the violating'
    " replies' tokens are released before the reply ends, and those before a"
    ' violation are among them.'
  )


def _each(names: Sequence[str], counts: Sequence[int]) -> str:
  return ', '.join(f'{count:,} {name}' for name, count in zip(names, counts))


def _verdict(outcome: certificate.Outcome) -> str:
  if reasons := ' '.join(outcome.decision.reasons):
    return f'**Not certified**: {reasons} There is no thresholds.json.'
  return 'Certified: the counts support every claim in thresholds.json.'


def _add_counts(page: report.Report, stage: thresholds.Stage) -> None:
  rows = []
  for name in thresholds.TIERS:
    tier = stage.for_tier(name)
    for limit in tier.limits:
      blocked, refused = limit.blocked, limit.refused
      precision = blocked.hits / max(1, blocked.hits + refused.hits)
      rows.append(
        (
          *(name, limit.name, f'{limit.high:.3g}'),
          *(blocked.rows, blocked.hits, f'{blocked.bound:.2%}'),
          *(refused.rows, refused.hits, f'{refused.bound:.2%}'),
          *(f'{precision:.3f}', f'{blocked.hits / blocked.rows:.3f}'),
        )
      )
    refused = tier.refused
    counts = refused.rows, refused.hits, f'{refused.bound:.2%}'
    rows.append((name, 'any', '', '', '', '', *counts, '', ''))
  columns = (
    *('tier', 'dimension', 'threshold', 'violating', 'blocked', 'at least'),
    *('benign', 'refused', 'at most', 'precision', 'recall'),
  )
  page.table(rows, columns).say(
    'Bounds are exact (Clopper–Pearson), one-sided, of each tier and dimension'
    ' by itself. Precision depends on how many of the texts violate; here it is'
    ' of violating and benign ones together.'
  )
