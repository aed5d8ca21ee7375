"""A training of a gate, written up as Markdown."""

from collections.abc import Iterator

from kaiju_jax.runs.gate import train
from kaiju_jax.serving.safety import thresholds


def write_up(result: train.Result) -> str:
  """Returns the report."""
  return '\n'.join(_lines(result)) + '\n'


def _lines(result: train.Result) -> Iterator[str]:
  gate, trained = result.gate, result.gate.trained
  yield f'# Gate {gate.version[:12]}'
  yield ''
  if result.why:
    yield f'**Not certified**: {result.why} There is no thresholds.json.'
  else:
    yield 'Certified: the counts support every claim in thresholds.json.'
  yield ''
  each = ', '.join(
    f'{count:,} {name}' for name, count in zip(gate.names, trained.violations)
  )
  yield (
    f'Trained on {trained.rows:,} texts ({each}) by {trained.library},'
    f' {trained.date}; thresholds chosen on {result.sizes["choose"]:,} and'
    f' counted on {result.sizes["certify"]:,} others. A window of'
    f' {gate.settings.window:,} characters takes'
    f' {result.milliseconds[0]:.2f} ms (median) and'
    f' {result.milliseconds[1]:.2f} ms (99 %) here.'
  )
  yield ''
  yield from _counts(result.stage)
  yield ''
  yield from _disguises(result)


def _counts(stage: thresholds.Stage) -> Iterator[str]:
  yield (
    '| tier | dimension | threshold | violating | blocked | at least | benign |'
    ' refused | at most | precision | recall |'
  )
  yield '|---|---|---|---|---|---|---|---|---|---|---|'
  for name in thresholds.TIERS:
    tier = stage.of(name)
    for limit in tier.limits:
      blocked, refused = limit.blocked, limit.refused
      precision = blocked.hits / max(1, blocked.hits + refused.hits)
      yield (
        f'| {name} | {limit.name} | {limit.high:.3g} | {blocked.rows} |'
        f' {blocked.hits} | {blocked.bound:.2%} | {refused.rows} |'
        f' {refused.hits} | {refused.bound:.2%} | {precision:.3f} |'
        f' {blocked.hits / blocked.rows:.3f} |'
      )
    yield (
      f'| {name} | any | | | | | {tier.refused.rows} | {tier.refused.hits} |'
      f' {tier.refused.bound:.2%} | | |'
    )
  yield ''
  yield (
    'Bounds are exact (Clopper–Pearson), one-sided, of each tier and dimension'
    ' by itself. Precision depends on how many of the texts violate; here it is'
    ' of violating and benign ones together.'
  )


def _disguises(result: train.Result) -> Iterator[str]:
  yield (
    "The texts that were counted, in disguise, at the minor's thresholds"
    ' (nothing is claimed of these):'
  )
  yield ''
  yield '| disguise | violating, blocked | benign, refused |'
  yield '|---|---|---|'
  for one in result.passed:
    yield f'| {one.disguise} | {one.blocked:.2%} | {one.refused:.2%} |'
