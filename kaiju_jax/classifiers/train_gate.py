"""Trains a gate on labelled texts and writes it with thresholds and a report.

The gate is the classifier that reads a user's text before the model does. Texts
are split into three parts (`rows.split`). Scikit-learn fits a logistic
regression per dimension to the segments of the first part and of its disguised
copies. Thresholds are chosen on the second part, plain and padded with other
texts, and counted on the third (`certificate.py`). The folder gets

    gate.safetensors   the gate (`serving/safety/gate.py`)
    thresholds.json    the thresholds, if the counts support them
    report.md          counts and bounds, and the effect of disguises
"""

import dataclasses
import datetime
import os
import time
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.classifiers import certificate
from kaiju_jax.classifiers import disguise
from kaiju_jax.classifiers import rows as rows_lib
from kaiju_jax.classifiers import settings as settings_lib
from kaiju_jax.reporting import report
from kaiju_jax.serving.safety import gate as gate_lib
from kaiju_jax.serving.safety import hashed
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import reading
from kaiju_jax.serving.safety import release
from kaiju_jax.serving.safety import thresholds
from kaiju_jax.storage import folders

# The tolerance of logits: weights are rounded to float32, and sums have another
# order.
_TOLERANCE = 1e-3
# The number of violating and of benign texts that are tried in each disguise.
_SAMPLE = 100


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings of a gate's training."""

  # How the texts are divided.
  division: settings_lib.Division = settings_lib.DIVISION
  # The confidence of the claims about both tiers together.
  confidence: float = thresholds.CONFIDENCE
  # The most tokens of a reply that a server holds back.
  hold: int = release.HOLD
  # Thresholds of the token-level head, which are copied to the file; None for
  # none.
  head: thresholds.Stage | None = None
  # The gate's features; the rows' names replace its `names`.
  settings: gate_lib.Settings = dataclasses.field(
    default_factory=gate_lib.Settings
  )


class DisguiseResult(NamedTuple):
  """The shares of disguised texts that the minor's thresholds reach."""

  disguise: str  # The disguise's name.
  blocked: float  # The share of violating texts that the gate blocks.
  refused: float  # The share of benign texts that it refuses.


class TrainedGate(NamedTuple):
  """The result of a gate's training."""

  gate: gate_lib.Gate
  stage: thresholds.Stage  # Its thresholds and their counts.
  outcome: certificate.Outcome  # Whether they are certified.
  sizes: dict[str, int]  # Texts per part.
  # One per disguise, measured on some texts of the part `certify`.
  passed: tuple[DisguiseResult, ...]
  # Median and 99 % quantile of scoring a full window.
  milliseconds: tuple[float, float]


def train(rows: rows_lib.Rows, training: Settings) -> TrainedGate:
  """Trains a gate, chooses its thresholds, and counts blocks and refusals.

  Raises:
    ImportError: scikit-learn is missing.
    ValueError: a part lacks some kind of texts, or a setting is wrong.
  """
  seed = training.division.seed
  parts = rows_lib.split(
    rows, training.division.choose, training.division.certify, seed
  )
  certificate.check_parts(parts)
  settings = dataclasses.replace(training.settings, names=rows.names)
  copies = disguise.add_disguised(parts['train'], seed)
  gate = fit(copies, parts['train'], settings, training)
  stage = _stage(gate, parts, training)
  policy = thresholds.Policy(
    format=thresholds.FORMAT,
    confidence=training.confidence,
    hold=training.hold,
    gate=stage,
    head=training.head,
  )
  return TrainedGate(
    gate=gate,
    stage=stage,
    outcome=certificate.decide('gate', policy, stage),
    sizes={part: len(found.rows) for part, found in parts.items()},
    passed=tuple(_list_passed(gate, stage, parts['certify'], seed)),
    milliseconds=_milliseconds(gate, parts['train']),
  )


def write(result: TrainedGate, path: str | os.PathLike[str]) -> None:
  """Writes the gate's folder, whole or not at all (`folders.write_whole`)."""
  with folders.write_whole(path) as folder:
    result.gate.save(folder / moderation.GATE)
    certificate.write(folder, result.outcome, page(result))


def page(result: TrainedGate) -> report.Report:
  """Returns the report on a gate."""
  gate, trained = result.gate, result.gate.trained
  found = report.Report(f'Gate {gate.version[:12]}')
  found.say(certificate.describe(result.outcome))
  each = certificate.list_counts(gate.names, trained.violations)
  found.say(
    f'Trained on {trained.rows:,} texts ({each}) by {trained.library},'
    f' {trained.date}; thresholds chosen on {result.sizes["choose"]:,} and'
    f' counted on {result.sizes["certify"]:,} others. A window of'
    f' {gate.settings.window:,} characters takes'
    f' {result.milliseconds[0]:.2f} ms (median) and'
    f' {result.milliseconds[1]:.2f} ms (99 %) here.'
  )
  certificate.add_counts(found, result.stage)
  found.say(
    "The texts that were counted, in disguise, at the minor's thresholds"
    ' (nothing is claimed of these):'
  )
  return found.table(
    [
      (one.disguise, f'{one.blocked:.2%}', f'{one.refused:.2%}')
      for one in result.passed
    ],
    ('disguise', 'violating, blocked', 'benign, refused'),
  )


def score_rows(gate: gate_lib.Gate, rows: rows_lib.Rows) -> np.ndarray:
  """Returns float64 [N, C], a gate's scores of each row."""
  return np.array([gate.score(row.text) for row in rows.rows]).reshape(
    len(rows.rows), len(gate.names)
  )


def fit(
  rows: rows_lib.Rows,
  originals: rows_lib.Rows,
  settings: gate_lib.Settings,
  training: Settings,
) -> gate_lib.Gate:
  linear_model, library = certificate.import_sklearn()
  parts = [
    reading.segments(
      reading.window(row.text, settings.window), settings.segment
    )
    for row in rows.rows
  ]
  row_S = np.repeat(np.arange(len(parts)), list(map(len, parts)))
  features = _vectorize(settings, [part for each in parts for part in each])
  models = []
  for c in range(len(settings.names)):
    model = linear_model.LogisticRegression(
      C=training.division.c, solver='liblinear', max_iter=1000
    )
    is_violating_S = rows.label_NC[row_S, c]
    model.fit(features, is_violating_S)
    if len(row_S) > len(parts):
      # Not every segment of a violating text is a violation, so the second fit
      # keeps only the one with the highest logit.
      logit_S = model.decision_function(features)
      kept_S = ~is_violating_S | (logit_S == _highest(logit_S, row_S)[row_S])
      model.fit(features[kept_S], is_violating_S[kept_S])
    models.append(model)
  gate = gate_lib.Gate(
    settings,
    np.concatenate([model.coef_ for model in models]).T.astype(np.float32),
    np.concatenate([model.intercept_ for model in models]).astype(np.float32),
    gate_lib.TrainingRecord(
      rows=len(originals.rows),
      violations=tuple(map(int, originals.label_NC.sum(axis=0))),
      data=originals.digest,
      date=datetime.date.today().isoformat(),
      library=library,
    ),
  )
  # The gate's own code serves, not scikit-learn's; both must agree.
  for n in range(0, len(parts), max(1, len(parts) // 100)):
    found = features[np.flatnonzero(row_S == n)]
    theirs = [model.decision_function(found).max() for model in models]
    ours = gate.logits(rows.rows[n].text)
    if not np.allclose(ours, theirs, rtol=_TOLERANCE, atol=_TOLERANCE):
      raise ValueError(
        f'{library} gives the logits {theirs}, and the gate {ours}: this'
        ' version hashes in another way.'
      )
  return gate


def _highest(logit_S: np.ndarray, row_S: np.ndarray) -> np.ndarray:
  """Returns [N], each row's highest logit; a row's segments are contiguous."""
  return np.maximum.reduceat(logit_S, np.unique(row_S, return_index=True)[1])


def _vectorize(settings: gate_lib.Settings, plain: list[str]) -> Any:
  """Returns scikit-learn's features of segments, all views side by side."""
  import scipy.sparse
  from sklearn.feature_extraction import text as text_lib

  readings = {'plain': plain, 'skeleton': list(map(reading.skeleton, plain))}
  views = [
    text_lib.HashingVectorizer(
      analyzer=view.analyzer,
      ngram_range=(view.low, view.high),
      token_pattern=hashed.WORD if view.analyzer == 'word' else None,
      lowercase=False,
      n_features=settings.features,
      binary=view.binary,
      norm=None if view.norm == 'none' else view.norm,
    ).transform(readings[view.reading])
    for view in settings.views
  ]
  return scipy.sparse.csr_matrix(scipy.sparse.hstack(views))


def _stage(
  gate: gate_lib.Gate, parts: dict[str, rows_lib.Rows], training: Settings
) -> thresholds.Stage:
  chosen = disguise.add_padded(
    parts['choose'], gate.settings.window * 9 // 10, training.division.seed
  )
  high = certificate.choose_thresholds(
    _score(gate, chosen), training.confidence
  )
  counted = _score(gate, parts['certify'])
  return certificate.count_stage(
    gate.version, parts['choose'], counted, high, training.confidence
  )


def _score(gate: gate_lib.Gate, rows: rows_lib.Rows) -> certificate.Scored:
  return certificate.Scored(rows, score_rows(gate, rows))


def _list_passed(gate, stage: thresholds.Stage, rows: rows_lib.Rows, seed: int):
  """Yields a `DisguiseResult` per disguise and per place of padding."""
  rng = np.random.default_rng(seed)
  benign = [row.text for row in rows.rows if not any(row.labels)]
  size = gate.settings.window * 9 // 10
  ways = {'as it is': lambda text: text, **disguise.DISGUISES}
  for where, before in ('behind', 1.0), ('before', 0.0), ('amid', 0.5):
    ways[f'{where} other texts, {size} characters'] = (
      lambda text, before=before: disguise.pad(text, benign, size, before, rng)
    )
  violating = [row.text for row in rows.rows if any(row.labels)]
  for name, way in ways.items():
    blocked, refused = (
      np.mean(
        [
          thresholds.find_reached(stage.minor.limits, gate.score(way(text)))
          is not None
          for text in rng.permutation(texts)[:_SAMPLE]
        ]
      )
      for texts in (violating, benign)
    )
    yield DisguiseResult(name, float(blocked), float(refused))


def _milliseconds(gate, rows: rows_lib.Rows) -> tuple[float, float]:
  text = ' '.join(row.text for row in rows.rows[:200])
  text = text * (1 + gate.settings.window // max(1, len(text)))
  taken = []
  for n in range(100):
    begun = time.perf_counter()
    gate.score(text[n:])
    taken.append(1e3 * (time.perf_counter() - begun))
  return float(np.median(taken)), float(np.quantile(taken, 0.99))
