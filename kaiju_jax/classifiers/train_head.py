"""Trains a token-level head on labelled texts and certifies it beside a gate.

The head is one linear layer over a frozen model's hidden states
(`model/token_head.py`). It reads all of a prompt and the reply, which the gate
does not. Texts are split into three parts (`rows.split`): the first trains a
head, thresholds are chosen on the second and counted on the third
(`certificate.py`). The result is a new folder, which a server takes:

    gate.safetensors   the gate, copied from its folder
    head.safetensors   the head
    thresholds.json    both stages' thresholds, if the counts support the head's
    report.md          the gate's report, followed by the head's

Each text is scored as a prompt and as a reply (`hidden_states.py`), by its
highest token. It counts as blocked if it is blocked in both places, and as
refused if it is refused in either.

Our guess: the training. The labels do not say which tokens of a violating text
are the violation. So a logistic regression per dimension is first fitted to
some tokens of each text. Each further fit takes the highest token of each
violating text, and the first fit's benign tokens plus every benign text's
highest token so far. The head is not trained to stay high after that token.

Also our guess: `low`. A reply's token below it releases all held text, and a
tenth of benign replies' tokens are below it. A linear head hardly recognizes a
violation that has only begun: the more benign tokens are below `low`, the
sooner text appears, and the more of a violation's beginning is shown
(`experiments/results/safety.md`).
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import NamedTuple

import numpy as np

from kaiju_jax.classifiers import certificate
from kaiju_jax.classifiers import hidden_states
from kaiju_jax.classifiers import rows as rows_lib
from kaiju_jax.classifiers import settings as settings_lib
from kaiju_jax.decoding.device import judge
from kaiju_jax.model import token_head
from kaiju_jax.reporting import report
from kaiju_jax.serving.safety import gate as gate_lib
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import release
from kaiju_jax.serving.safety import thresholds
from kaiju_jax.storage import folders

# The tokens of each text in the first fit, and the number of fits.
_DRAWN, _ROUNDS = 16, 8
# The most bytes of hidden states; beyond, longer texts keep some drawn tokens.
_KEPT = 2**30
_LOW = 0.1


class Read(NamedTuple):
  """A head's scores of texts."""

  rows: rows_lib.Rows  # N texts.
  # By role, float32 [T, C] per text, the scores of its judged tokens.
  score: Mapping[str, list[np.ndarray]]

  def take_worst(self) -> certificate.Scored:
    """Returns each text's less favourable score of its two roles.

    A violating text has the lower one, and a benign text the higher one.
    """
    lowest_NC, highest_NC = (
      choice(*(self.highest(role) for role in hidden_states.ROLES))
      for choice in (np.minimum, np.maximum)
    )
    label_NC = self.rows.label_NC
    return certificate.Scored(
      self.rows, np.where(label_NC, lowest_NC, highest_NC)
    )

  def highest(self, role: str) -> np.ndarray:
    """Returns float64 [N, C], the score of each text's highest token."""
    return np.array(
      [x_TC.max(axis=0, initial=0) for x_TC in self.score[role]], np.float64
    )

  def replies(self, is_violating: bool) -> list[np.ndarray]:
    """Returns the scores of violating replies, or of benign ones."""
    is_wanted_N = self.rows.label_NC.any(axis=1) == is_violating
    return [self.score['reply'][n] for n in np.flatnonzero(is_wanted_N)]


class TrainedHead(NamedTuple):
  """The result of a head's training and certification."""

  head: judge.Head  # Its parameters and config.
  version: str  # Its version.
  origin: str  # A description of the model whose hidden states it reads.
  library: str  # The library that trained it; '' for a given head.
  # The part `train` of the texts; a given head did not use it.
  trained_on: rows_lib.Rows
  stage: thresholds.Stage  # Its thresholds and their counts.
  outcome: certificate.Outcome  # Whether they are certified.
  sizes: dict[str, int]  # Texts per part.
  # The share of the counted benign replies' tokens that is released as soon as
  # it is judged, at the minor's thresholds.
  at_once: float
  # The share of the violating replies' tokens that is released before the reply
  # ends.
  shown: float


def train(
  reader: hidden_states.Reader,
  rows: rows_lib.Rows,
  gate: thresholds.Policy,
  division: settings_lib.Division = settings_lib.DIVISION,
  head: judge.Head | None = None,
) -> TrainedHead:
  """Trains a head, chooses its thresholds, and counts blocks and refusals.

  Args:
    reader: of the model whose hidden states the head reads.
    rows: labelled texts.
    gate: the gate's policy, which gives confidence and hold.
    division: how the texts are divided.
    head: a head to certify; None to train one.

  Raises:
    ImportError, ValueError: as `train_gate.train`; or the head has other
      dimensions.
  """
  parts = rows_lib.split(rows, division.choose, division.certify, division.seed)
  certificate.check_parts(parts)
  library = ''
  if head is None:
    head, library = _fit(reader, parts['train'], division)
  else:
    _check_names(head[1].names, rows.names)
  params, config = head
  version = moderation.head_version(params, config.names)
  chosen = read(reader, head, parts['choose'])
  counted = read(reader, head, parts['certify'])
  stage = certificate.count_stage(
    version,
    parts['choose'],
    counted.take_worst(),
    certificate.choose_thresholds(chosen.take_worst(), gate.confidence),
    gate.confidence,
    choose_low(np.concatenate(chosen.replies(False)), _LOW),
  )
  policy = dataclasses.replace(gate, head=stage)
  return TrainedHead(
    head=head,
    version=version,
    origin=reader.origin,
    library=library,
    trained_on=parts['train'],
    stage=stage,
    outcome=certificate.decide('token head', policy, stage, check_claims),
    sizes={part: len(found.rows) for part, found in parts.items()},
    at_once=find_share_at_once(counted.replies(False), stage.minor),
    shown=find_released_share(counted.replies(True), stage.minor, gate.hold),
  )


def write(
  result: TrainedHead,
  gate: str | os.PathLike[str],
  path: str | os.PathLike[str],
  models: Sequence[str] = (),
) -> None:
  """Writes the head's folder, whole or not at all (`folders.write_whole`).

  Args:
    result: the head.
    gate: the gate's folder.
    path: the new folder.
    models: as in `token_head.save`.
  """
  gate = pathlib.Path(gate)
  with folders.write_whole(path) as folder:
    content = (gate / moderation.GATE).read_bytes()
    (folder / moderation.GATE).write_bytes(content)
    token_head.save(folder / moderation.HEAD, *result.head, models)
    whole, before = report.Report(), gate / report.FILE
    if before.is_file():
      whole.say(before.read_text(encoding='utf-8').rstrip('\n'))
    whole.add(*page(result).parts)
    certificate.write(folder, result.outcome, whole)


def page(result: TrainedHead) -> report.Report:
  """Returns the report on a token-level head."""
  found = report.Report(f'Token head {result.version[:12]}')
  found.say(certificate.describe(result.outcome))
  made = 'Not trained here'
  if result.library:
    rows = result.trained_on
    each = certificate.list_counts(rows.names, rows.label_NC.sum(axis=0))
    made = f'Trained on {len(rows.rows):,} texts ({each}) by {result.library}'
  found.say(
    f'{made}, {result.stage.date}; it reads the hidden states of'
    f' {result.origin}. Thresholds chosen on {result.sizes["choose"]:,} and'
    f' counted on {result.sizes["certify"]:,} other texts, each alone or behind'
    ' a built-in character, as a prompt and as a reply. A text counts as'
    ' blocked if it is blocked in both places, and as refused if it is refused'
    ' in either. Nothing is claimed of long conversations, nor of other'
    ' characters.'
  )
  certificate.add_counts(found, result.stage)
  low = ', '.join(
    f'{limit.name} {limit.low:.3g}' for limit in result.stage.minor.limits
  )
  return found.say(
    "Of the replies that were counted, at the minor's thresholds (nothing is"
    f' claimed of these): {result.at_once:.1%} of the benign tokens are below'
    f' low ({low}) and released at once; {result.shown:.1%} of the violating'
    " replies' tokens are released before the reply ends, and those before a"
    ' violation are among them.'
  )


def read(
  reader: hidden_states.Reader, head: judge.Head, rows: rows_lib.Rows
) -> Read:
  """Returns a head's scores of each row, which a server's engine would give.

  Raises:
    ValueError: a text is too long for the model, or a score is not finite.
  """
  params, _ = head
  w_DC, bias_C = (np.asarray(params[name]) for name in ('w_DC', 'bias_C'))
  score = {}
  for role in hidden_states.ROLES:
    placed = [reader.place(row.text, role) for row in rows.rows]
    score[role] = [
      gate_lib.probability(states_TD @ w_DC + bias_C)
      for states_TD in reader.states(placed)
    ]
    for row, score_TC in zip(rows.rows, score[role]):
      if not np.isfinite(score_TC).all():
        raise ValueError(
          f'the model gives {row.text[:40]!r}… no finite numbers: nothing can'
          ' be certified.'
        )
  return Read(rows, score)


def choose_low(score_TC: np.ndarray, part: float) -> np.ndarray:
  """Returns thresholds [C]; a share `part` of the tokens is below all of them.

  In each dimension equally many tokens are below the threshold.
  """
  rank_TC = np.argsort(np.argsort(score_TC, axis=0), axis=0)
  level = np.quantile(rank_TC.max(axis=1), part) / max(1, len(score_TC) - 1)
  return np.quantile(score_TC, level, axis=0)


def _fit(
  reader: hidden_states.Reader,
  rows: rows_lib.Rows,
  division: settings_lib.Division,
) -> tuple[judge.Head, str]:
  linear_model, library = certificate.import_sklearn()
  rng = np.random.default_rng(division.seed)
  states_SD, text_S = read_states(reader, rows, rng)
  begins = np.unique(text_S, return_index=True)[1]
  # A text in both roles counts as two texts here, all prompts first.
  label_MC = np.tile(rows.label_NC, (len(hidden_states.ROLES), 1))
  is_drawn_S = _draw(text_S, begins, rng)
  models = []
  for c in range(len(rows.names)):
    model = linear_model.LogisticRegression(C=division.c, max_iter=1000)
    is_violating_S = label_MC[text_S, c]
    is_kept_S = is_drawn_S.copy()
    for _ in range(_ROUNDS):
      model.fit(states_SD[is_kept_S], is_violating_S[is_kept_S])
      logit_S = states_SD @ model.coef_[0].astype(np.float32)
      is_kept_S &= ~is_violating_S
      is_kept_S[_highest(logit_S, text_S, begins)] = True
    models.append(model)
  params = {
    'w_DC': np.concatenate([x.coef_ for x in models]).T.astype(np.float32),
    'bias_C': np.concatenate([x.intercept_ for x in models]).astype(np.float32),
  }
  return (params, token_head.TokenHeadConfig(rows.names)), library


def read_states(
  reader: hidden_states.Reader, rows: rows_lib.Rows, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
  """Returns states [S, D] of all texts in each role, and text indices [S]."""
  placed = [
    reader.place(row.text, role)
    for role in hidden_states.ROLES
    for row in rows.rows
  ]
  # Beyond `_KEPT` bytes, longer texts keep equally many tokens.
  most = max(1, _KEPT // (4 * reader.d_model * len(placed)))
  kept, text_S = [], []
  for number, states_TD in enumerate(reader.states(placed)):
    if len(states_TD) > most:
      found = rng.choice(len(states_TD), most, replace=False)
      states_TD = states_TD[np.sort(found)]
    kept.append(states_TD)
    text_S += [number] * len(states_TD)
  return np.concatenate(kept), np.array(text_S)


def _draw(
  text_S: np.ndarray, begins: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
  """Returns bool [S], which marks at most `_DRAWN` tokens per text."""
  is_drawn_S = np.zeros(len(text_S), bool)
  for begin, end in zip(begins, [*begins[1:], len(text_S)]):
    is_drawn_S[begin + rng.permutation(end - begin)[:_DRAWN]] = True
  return is_drawn_S


def _highest(
  logit_S: np.ndarray, text_S: np.ndarray, begins: np.ndarray
) -> np.ndarray:
  """Returns the index of each text's highest token."""
  order = np.lexsort((-logit_S, text_S))
  return order[begins]


def check_claims(policy: thresholds.Policy) -> None:
  """Refuses a policy whose head alone does not claim enough blocked texts."""
  thresholds.check(policy)
  for tier in thresholds.TIERS:
    for limit in policy.head.for_tier(tier).limits:
      if limit.blocked.claim < thresholds.BLOCKED:
        raise ValueError(
          f'head.{tier}: {limit.name}.blocked.claim={limit.blocked.claim:.4f}:'
          f' the head alone reads replies, and must claim'
          f' {thresholds.BLOCKED}.'
        )


def _check_names(found: tuple[str, ...], wanted: tuple[str, ...]) -> None:
  if tuple(found) != wanted:
    raise ValueError(
      f'the head has the dimensions {list(found)}, and the texts are labelled'
      f' along {list(wanted)}: they must be the same, in the same order.'
    )


def find_share_at_once(
  replies: list[np.ndarray], tier: thresholds.Tier
) -> float:
  low_C = [limit.low for limit in tier.limits]
  return float(np.mean((np.concatenate(replies) < low_C).all(axis=1)))


def find_released_share(
  replies: list[np.ndarray], tier: thresholds.Tier, hold: int
) -> float:
  """Returns the share of violating replies' tokens that is released."""
  bounds = moderation.bounds(tier)
  shown = 0
  for score_TC in replies:
    out = release.Release(bounds, hold)
    for score_C in score_TC.tolist():
      shown += out.push('', score_C).tokens
      if out.violation:
        break
    shown += out.finish().tokens
  return shown / max(1, sum(map(len, replies)))
