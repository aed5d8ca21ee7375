"""Main effects and pair interactions of arms that are a full grid.

Factors are found in the configs. Fields whose values do not occur in all
combinations vary together, such as those that a named arm sets, and are one
factor. With levels a and b, and the baseline's a₀ and b₀,

    main effect    y(b) − y(b₀), the mean over the levels of the other factors
    interaction    (y(a, b) − y(a, b₀)) − (y(a₀, b) − y(a₀, b₀)), likewise

each a contrast of the arms' means (`statistics.contrast`): within seeds where
all arms have them.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import itertools
import math
from typing import Any
from typing import NamedTuple

from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.storage import strict
from kaiju_jax.training import experiment as experiment_lib


class Factor(NamedTuple):
  """What varies in a grid."""

  name: str  # Of its fields.
  levels: Mapping[str, str]  # {arm: its level}.
  first: str  # The baseline's level.

  @property
  def others(self) -> list[str]:
    """The levels that are not the baseline's, in the order of the arms."""
    return [x for x in dict.fromkeys(self.levels.values()) if x != self.first]


def list_fields(
  experiments: Mapping[str, experiment_lib.Experiment], baseline: str
) -> dict[str, dict[str, Any]]:
  """Returns {field: {arm: value}} of fields that differ, but the seed."""
  first, found = strict.dump(experiments[baseline]), {}
  for arm, experiment in experiments.items():
    differences = strict.differences(first, strict.dump(experiment))
    for field, (ours, theirs) in differences.items():
      if field != 'seed':
        values = found.setdefault(field, dict.fromkeys(experiments, ours))
        values[arm] = theirs
  return dict(sorted(found.items()))


def find_factors(
  fields: Mapping[str, Mapping[str, Any]], baseline: str
) -> list[Factor]:
  """Returns the factors of a full grid; none if the arms are no such grid.

  Args:
    fields: as `list_fields` returns them.
    baseline: the arm with the factors' first levels.
  """
  found = [
    ([name], {arm: repr(value) for arm, value in values.items()})
    for name, values in fields.items()
  ]
  while apart := _find_uncrossed(found):
    (names, ours), (more, theirs) = apart
    found = [one for one in found if one not in apart]
    joint = {arm: repr((ours[arm], theirs[arm])) for arm in ours}
    found.append((names + more, joint))
  count = math.prod(len(set(levels.values())) for _, levels in found)
  cells = list(zip(*(levels.values() for _, levels in found)))
  if len(found) < 2 or not len(set(cells)) == count == len(cells):
    return []
  return [_label(one, found, fields, baseline) for one in found]


def _find_uncrossed(found: list) -> tuple | None:
  """Returns two factors of which not all pairs of levels occur."""
  for (one, ours), (other, theirs) in itertools.combinations(found, 2):
    pairs = set(zip(ours.values(), theirs.values()))
    if len(pairs) < len(set(ours.values())) * len(set(theirs.values())):
      return (one, ours), (other, theirs)
  return None


def _label(one, found, fields, baseline: str) -> Factor:
  """Returns a factor with levels named by values, or by arms if of several."""
  names, levels = one
  if len(names) == 1:
    values = fields[names[0]]
    labels = {arm: str(value) or "''" for arm, value in values.items()}
    return Factor(names[0], labels, labels[baseline])
  others = [each for other, each in found if other is not names]
  alone = {
    level: arm
    for arm, level in levels.items()
    if all(each[arm] == each[baseline] for each in others)
  }
  labels = {arm: alone[level] for arm, level in levels.items()}
  name = ', '.join(names) if len(names) < 3 else f'{names[0]} and others'
  return Factor(name, labels, baseline)


def table(
  factors: list[Factor], values: Mapping[str, Mapping[int, float]]
) -> report.Table:
  """Returns a row for each main effect and each interaction of two factors.

  Args:
    factors: of a full grid.
    values: {arm: {seed: value}}, of all arms.
  """
  named = [*_main_effects(factors), *_interactions(factors)]
  found = [statistics.contrast(weights, values) for _, weights in named]
  return report.Table(
    zip((name for name, _ in named), *judge(found)),
    ('effect', 'estimate (95 % interval)', 'seeds', *JUDGED),
  )


JUDGED = 'p (Holm)', 'detectable'


def judge(found: list[statistics.Difference]) -> tuple[list, ...]:
  """Returns columns: differences, seeds, corrected p, smallest effects seen."""
  ps = statistics.holm([one.p for one in found])
  compared = max(1, sum(not math.isnan(p) for p in ps))
  return (
    found,
    [one.seeds or one.how for one in found],
    [report.number(p, '.3g') for p in ps],
    [report.number(one.detectable(compared)) for one in found],
  )


def _main_effects(factors) -> Iterator[tuple[str, dict[str, float]]]:
  for factor in factors:
    for level in factor.others:
      yield f'{factor.name}: {factor.first} → {level}', _signs(factor, level)


def _interactions(factors) -> Iterator[tuple[str, dict[str, float]]]:
  for one, other in itertools.combinations(factors, 2):
    for ours, theirs in itertools.product(one.others, other.others):
      first, second = _signs(one, ours), _signs(other, theirs)
      both = {arm: first[arm] * second[arm] for arm in first if arm in second}
      # Each of the four groups is a mean.
      size = len(both) / 4
      weights = {arm: math.copysign(1 / size, x) for arm, x in both.items()}
      name = f'{one.name}: {one.first} → {ours}'
      yield f'{name} × {other.name}: {other.first} → {theirs}', weights


def _signs(factor: Factor, level: str) -> dict[str, float]:
  """Returns the weights of arms whose sum is a main effect."""
  chosen = {
    arm: 1 if own == level else -1
    for arm, own in factor.levels.items()
    if own in (level, factor.first)
  }
  return {arm: sign / (len(chosen) / 2) for arm, sign in chosen.items()}
