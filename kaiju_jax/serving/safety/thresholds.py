"""Certified thresholds of both safety stages, per age tier, in one file.

A stage is a classifier (the gate or the token-level head) with a threshold per
age tier and dimension (a kind of violation). A text whose score reaches a
threshold is refused. `classifiers/certificate.py` counts what each threshold
does on texts that neither trained the classifier nor chose the threshold: how
many violating texts it blocks, and how many benign ones it refuses. The file
holds these counts, their exact bounds and the claims that the bounds support.
`load` recomputes the bounds; it rejects a file with a claim that its counts do
not support, or with a claim that is too weak to serve with.

Source 003 says: about 600 texts per set, block rates near 100 %, benign
refusals below 1 %, stricter thresholds under 18, separate rates per tier. Our
guess: 'near 100 %' means at least 99 % in one of the two stages; the confidence
of 95 % covers both tiers together, so each tier's bounds have 97.5 % (1 refusal
in 600 benign texts then shows 0.93 %, 2 show 1.2 %); it covers each dimension
and each stage by itself. A request of unknown age gets the minors' thresholds.
"""

from collections.abc import Sequence
import dataclasses
import math
import os
import pathlib

from kaiju_jax.reporting import statistics
from kaiju_jax.serving.safety import gate as gate_lib
from kaiju_jax.storage import files
from kaiju_jax.storage import strict

FORMAT = 'kaiju_jax thresholds 1'
TIERS = 'adult', 'minor'
# The claims that serving requires, and their confidence.
BLOCKED, REFUSED, CONFIDENCE = 0.99, 0.01, 0.95
_ROUNDING = 1e-6
_LONGEST_HOLD = 64


@dataclasses.dataclass(frozen=True)
class Proportion:
  """A count on a set of texts, with its bound and the claim made from it."""

  rows: int  # The number of texts in the set.
  # The number of these that were blocked (violating) or refused (benign).
  hits: int
  # The exact bound of the rate: from below for blocked texts, from above for
  # refused ones.
  bound: float
  # The claimed rate: at most the bound for blocked texts, at least the bound
  # for refused ones.
  claim: float


@dataclasses.dataclass(frozen=True)
class Limit:
  """The thresholds of one dimension."""

  name: str
  # The hold-back's: a token whose scores are all below is released at once
  # (`release.py`). None for the gate.
  low: float | None
  high: float  # A text or token whose score reaches it is blocked.
  blocked: Proportion  # The count on the texts that violate this dimension.
  # The count on the benign texts, of refusals by this dimension.
  refused: Proportion


@dataclasses.dataclass(frozen=True)
class Tier:
  """The thresholds of an age tier."""

  # One per dimension of the classifier, in its order.
  limits: tuple[Limit, ...]
  # The count on the benign texts, of refusals by any dimension.
  refused: Proportion


@dataclasses.dataclass(frozen=True)
class Stage:
  """One classifier's thresholds."""

  # The classifier's version (`gate.Gate.version` or `moderation.head_version`).
  version: str
  chosen_on: str  # SHA-256 of the texts that chose the thresholds.
  certified_on: str  # SHA-256 of the texts that they were counted on.
  date: str  # The day of the count, as 2026-11-22.
  adult: Tier  # Thresholds for adults.
  minor: Tier  # Thresholds for minors, and for users of unknown age.

  @property
  def names(self) -> tuple[str, ...]:
    """The classifier's dimensions, in its order."""
    return tuple(limit.name for limit in self.minor.limits)

  def for_tier(self, tier: str) -> Tier:
    """Returns a tier's thresholds; the minors' for any other word."""
    return self.adult if tier == 'adult' else self.minor


@dataclasses.dataclass(frozen=True)
class Policy:
  """The content of a file of thresholds."""

  format: str  # `FORMAT`.
  confidence: float  # The confidence of the claims about both tiers together.
  hold: int  # The largest number of a reply's tokens that the hold-back holds.
  gate: Stage  # The thresholds of the gate.
  # The thresholds of the token-level head. With None, a server serves nothing.
  head: Stage | None

  def stages(self) -> dict[str, Stage]:
    """Returns the stages by name, 'gate' and, if present, 'head'."""
    stages = {'gate': self.gate, 'head': self.head}
    return {name: stage for name, stage in stages.items() if stage}


def find_reached(
  limits: Sequence[Limit], scores: Sequence[float]
) -> tuple[str, float] | None:
  """Returns the dimension that a text violates most, with its score, or None.

  It is the dimension whose score is furthest above its threshold. A NaN
  violates its dimension, and more than any number does.
  """
  over = [
    (float(score) - limit.high, limit.name, float(score))
    for limit, score in zip(limits, scores, strict=True)
    if not score < limit.high
  ]
  if not over:
    return None
  _, name, score = max(over, key=lambda one: (math.isnan(one[0]), one[0]))
  return name, score


def confidence_of_tier(confidence: float) -> float:
  """Returns the confidence of each tier's bounds (Bonferroni)."""
  return 1 - (1 - confidence) / len(TIERS)


def bound_count(
  hits: int, rows: int, claim: float, confidence: float, is_least: bool
) -> Proportion:
  """Returns a count with its exact bound; does not check `claim`.

  Args:
    hits: the number of blocked or refused texts.
    rows: the number of texts.
    claim: the rate to claim.
    confidence: the policy's confidence.
    is_least: whether to bound the rate from below rather than from above.

  Raises:
    ValueError: `rows` is 0, or `hits` is not in 0…`rows`.
  """
  bound = statistics.at_least if is_least else statistics.at_most
  found = bound(hits, rows, confidence_of_tier(confidence))
  return Proportion(rows, hits, found, claim)


def write(path: str | os.PathLike[str], policy: Policy) -> None:
  """Writes a policy that `check` accepts.

  Raises:
    ValueError: see `load`.
    OSError: the file cannot be written.
  """
  check(policy)
  files.write_json(pathlib.Path(path), strict.dump(policy))


def load(path: str | os.PathLike[str]) -> Policy:
  """Returns the policy in a file that `write` wrote.

  Raises:
    OSError: the file is missing or cannot be read.
    ValueError: names the field, its value and what would be right: a value is
      missing or of another type, a claim does not follow from its counts or is
      too weak, or the minor's thresholds are looser than the adult's.
  """
  path = pathlib.Path(path)
  data = files.read_json(path)
  try:
    found = data.get('format') if isinstance(data, dict) else None
    if found != FORMAT:
      raise ValueError(f'format={found!r}: must be {FORMAT!r}.')
    policy = strict.parse(Policy, data)
    check(policy)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  return policy


def check(policy: Policy) -> None:
  """Rejects a policy that is not certified, for the reasons in `load`.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  if not CONFIDENCE <= policy.confidence < 1:
    raise ValueError(
      f'confidence={policy.confidence}: must be at least {CONFIDENCE}, and'
      ' below 1.'
    )
  if not 0 <= policy.hold <= _LONGEST_HOLD:
    raise ValueError(f'hold={policy.hold}: must be 0…{_LONGEST_HOLD} tokens.')
  for name, stage in policy.stages().items():
    _check_stage(name, stage, policy.confidence)
  for tier_name in TIERS:
    _check_blocked(policy, tier_name)


def check_classifier(
  stage: Stage, name: str, version: str, names: tuple[str, ...]
) -> None:
  """Rejects thresholds that were certified with another classifier.

  Args:
    name: 'gate' or 'head', for messages.
    version: the version of the loaded classifier.

  Raises:
    ValueError: says what differs.
  """
  if stage.version != version:
    raise ValueError(
      f'{name}.version={stage.version!r}: the thresholds were certified with'
      f' that one, and {version!r} is loaded.'
    )
  if stage.names != tuple(names):
    raise ValueError(
      f'{name}: has thresholds for {list(stage.names)}; the classifier scores'
      f' {list(names)}, in this order.'
    )


def _check_stage(name: str, stage: Stage, confidence: float) -> None:
  if stage.chosen_on == stage.certified_on:
    raise ValueError(
      f'{name}.certified_on: the texts that the thresholds were chosen on'
      ' certify nothing; others must.'
    )
  if not stage.version:
    raise ValueError(f'{name}.version: must name the classifier.')
  gate_lib.check_names(f'{name}.minor.limits', stage.names)
  adults = tuple(limit.name for limit in stage.adult.limits)
  if adults != stage.names:
    raise ValueError(
      f"{name}.adult.limits: dimensions {list(adults)}, the minor's are"
      f' {list(stage.names)}; they must be the same, in the same order.'
    )
  for tier_name in TIERS:
    where = f'{name}.{tier_name}'
    _check_tier(where, stage.for_tier(tier_name), name == 'head', confidence)
  for minor, adult in zip(stage.minor.limits, stage.adult.limits):
    for field in 'low', 'high':
      ours, theirs = getattr(minor, field), getattr(adult, field)
      if ours is not None and ours > theirs:
        raise ValueError(
          f'{name}.minor: {minor.name}.{field}={ours} is looser than the'
          f" adult's {theirs}; it must not be above it."
        )


def _check_tier(where: str, tier: Tier, is_head: bool, confidence) -> None:
  for limit in tier.limits:
    field = f'{where}: {limit.name}'
    if is_head and limit.low is None:
      raise ValueError(f'{field}.low: missing; the token head has a middle.')
    if not is_head and limit.low is not None:
      raise ValueError(f'{field}.low={limit.low}: must be null for the gate.')
    low = 0 if limit.low is None else limit.low
    if not (0 <= low <= limit.high and 0 < limit.high < 1):
      raise ValueError(
        f'{field}: low={limit.low}, high={limit.high}: must be probabilities'
        ' with low ≤ high, and 0 < high < 1.'
      )
    _check_proportion(f'{field}.blocked', limit.blocked, confidence, True)
    _check_refused(f'{field}.refused', limit.refused, confidence)
    if limit.refused.rows != tier.refused.rows:
      raise ValueError(
        f'{field}.refused.rows={limit.refused.rows}: must be the'
        f' {tier.refused.rows} benign texts of {where}.refused.'
      )
  _check_refused(f'{where}.refused', tier.refused, confidence)
  each = [limit.refused.hits for limit in tier.limits]
  if not max(each) <= tier.refused.hits <= sum(each):
    raise ValueError(
      f'{where}.refused.hits={tier.refused.hits}: dimensions refuse {each} of'
      ' the same texts, so that any of them refuses'
      f' {max(each)}…{sum(each)}.'
    )


def _check_refused(field: str, refused: Proportion, confidence: float) -> None:
  _check_proportion(field, refused, confidence, False)
  if refused.claim > REFUSED:
    raise ValueError(
      f'{field}.claim={refused.claim}: of benign texts at most {REFUSED:.0%}'
      ' may be refused.'
    )


def _check_proportion(
  field: str, found: Proportion, confidence: float, is_least: bool
) -> None:
  """Rejects a bound that differs from the counts' own, or a claim beyond it."""
  try:
    true = bound_count(
      found.hits, found.rows, found.claim, confidence, is_least
    )
  except ValueError as error:
    raise ValueError(f'{field}: {error}') from error
  if abs(true.bound - found.bound) > _ROUNDING:
    raise ValueError(
      f'{field}.bound={found.bound}: {found.hits} of {found.rows} give'
      f' {true.bound:.6f}.'
    )
  claim = found.claim
  if not (0 <= claim <= true.bound if is_least else true.bound <= claim <= 1):
    side = 'at least' if is_least else 'at most'
    raise ValueError(
      f'{field}.claim={claim}: {found.hits} of {found.rows} show {side}'
      f' {true.bound:.6f}, with confidence'
      f' {confidence_of_tier(confidence):.4g} for each tier.'
    )


def _check_blocked(policy: Policy, tier_name: str) -> None:
  """Rejects a dimension for which no stage claims the block rate `BLOCKED`."""
  claims: dict[str, float] = {}
  for stage in policy.stages().values():
    for limit in stage.for_tier(tier_name).limits:
      best = max(claims.get(limit.name, 0), limit.blocked.claim)
      claims[limit.name] = best
  for name, claim in claims.items():
    if claim < BLOCKED:
      raise ValueError(
        f'{tier_name}: {name}: the best claim of a stage is that it blocks'
        f' {claim}; one of them must claim {BLOCKED}.'
      )
