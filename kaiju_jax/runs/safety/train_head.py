"""From labelled texts to a token head beside a gate, both certified.

The head is one linear layer over a frozen model's hidden states
(`model/token_head.py`) and reads what the gate does not: all of a prompt, and
the reply. Texts are split into three (`rows.split`): the first part trains a
head, thresholds are chosen on the second and counted on the third
(`certified.py`). The gate's folder becomes a new one, which a server takes:

    gate.safetensors   the gate, as it was
    head.safetensors   the head
    thresholds.json    both stages' thresholds, if the counts support the head's
    report.md          the gate's report, with the head's behind it

Each text is scored as a prompt and as a reply (`said.py`), by its highest
token. It counts as blocked if it is blocked in both places, and as refused if
it is refused in either.

Our guess: the training. Of a violating text nobody says which tokens violate.
So a logistic regression per dimension is fitted to some tokens of each text
first, and then again and again to the token of each violating text that says so
most, against the benign tokens that said so most so far. Whether the head stays
high behind that token is not asked of it.

And `low`, below which a reply's token releases all that is held: a tenth of
benign replies' tokens are below it. A linear head knows little of a violation
that has only begun; the more of the benign tokens are below `low`, the sooner
text appears, and the more of a violation's beginning is shown
(`experiments/results/safety.md`).
"""

from collections.abc import Mapping
import dataclasses
import os
import pathlib
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.device import judge
from kaiju_jax.model import token_head
from kaiju_jax.runs.safety import certified
from kaiju_jax.runs.safety import rows as rows_lib
from kaiju_jax.runs.safety import said as said_lib
from kaiju_jax.serving.safety import gate as gate_lib
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import release
from kaiju_jax.serving.safety import thresholds
from kaiju_jax.storage import folders

# Tokens of each text that are fitted first, and how often they are chosen anew.
_DRAWN, _ROUNDS = 16, 8
# Bytes of hidden states that are kept; of longer texts some tokens are drawn.
_KEPT = 2**30
_LOW = 0.1


@dataclasses.dataclass(frozen=True)
class Task:
  """What is asked for.

  Attributes:
    choose: the part of the texts on which thresholds are chosen.
    certify: the part on which they are counted.
    seed: of the split and of the tokens that are drawn.
    c: the inverse of the regularization's strength, as scikit-learn has it.
    head: a head to certify; None to train one.
  """

  choose: float = 0.2
  certify: float = 0.4
  seed: int = 0
  c: float = 1.0
  head: judge.Head | None = None


class Read(NamedTuple):
  """What a head gives texts.

  Attributes:
    rows: N texts.
    score: float32 [T, C] of each text's judged tokens, by its role.
  """

  rows: rows_lib.Rows
  score: Mapping[str, list[np.ndarray]]

  def score(self) -> certified.Scored:
    """Returns a score for each text: the one that speaks against the head.

    A violating text's is the lower one of its two places, and a benign text's
    the higher one.
    """
    lowest_NC, highest_NC = (
      choice(*(self.highest(role) for role in said_lib.ROLES))
      for choice in (np.minimum, np.maximum)
    )
    label_NC = self.rows.label_NC
    return certified.Scored(
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


class Result(NamedTuple):
  """What came of a training, or of a head that was given.

  Attributes:
    head: its parameters and config.
    version: its version.
    origin: the model whose hidden states it reads, in words.
    library: what trained it; '' for a head that was given.
    trained_on: the texts that it was trained on, if it was.
    stage: its thresholds.
    outcome: whether they are certified.
    sizes: texts per part.
    at_once: of the benign replies' tokens that were counted, the part that is
      released as soon as it is judged, at the minor's thresholds.
    shown: of the violating replies' tokens the part that is released before
      the reply ends.
  """

  head: judge.Head
  version: str
  origin: str
  library: str
  trained_on: rows_lib.Rows
  stage: thresholds.Stage
  outcome: certified.Outcome
  sizes: dict[str, int]
  at_once: float
  shown: float


def train(
  reader: said_lib.Reader,
  rows: rows_lib.Rows,
  gate: thresholds.Policy,
  task: Task,
) -> Result:
  """Trains a head, chooses its thresholds and counts what they do.

  Args:
    reader: of the model that the head reads.
    rows: labelled texts.
    gate: the gate's thresholds; confidence and hold are theirs.
    task: what is asked for.

  Raises:
    ImportError: scikit-learn is missing.
    ValueError: names the argument, its value and what would be right.
  """
  parts = rows_lib.split(rows, task.choose, task.certify, task.seed)
  certified.check_parts(parts)
  library = ''
  if task.head is None:
    head, library = _fit(reader, parts['train'], task)
  else:
    head = task.head
    _check_names(head[1].names, rows.names)
  params, config = head
  version = moderation.head_version(params, config.names)
  chosen = read(reader, head, parts['choose'])
  counted = read(reader, head, parts['certify'])
  stage = certified.stage(
    version,
    parts['choose'],
    counted.score(),
    certified.high(chosen.score(), gate.confidence),
    gate.confidence,
    low(np.concatenate(chosen.replies(False)), _LOW),
  )
  policy = dataclasses.replace(gate, head=stage)
  return Result(
    head=head,
    version=version,
    origin=reader.origin,
    library=library,
    trained_on=parts['train'],
    stage=stage,
    outcome=certified.outcome(policy, stage, _check),
    sizes={part: len(found.rows) for part, found in parts.items()},
    at_once=_at_once(counted.replies(False), stage.minor),
    shown=_released_share(counted.replies(True), stage.minor, gate.hold),
  )


def write(
  result: Result, gate: str | os.PathLike, path: str | os.PathLike, report: str
) -> None:
  """Writes a new folder, whole or not at all; see the module.

  Args:
    result: the head.
    gate: the gate's folder.
    path: the new folder.
    report: on the head.

  Raises:
    ValueError, OSError: the folder exists, or cannot be written.
  """
  gate = pathlib.Path(gate)
  with folders.write_whole(path) as folder:
    content = (gate / moderation.GATE).read_bytes()
    (folder / moderation.GATE).write_bytes(content)
    token_head.save(folder / moderation.HEAD, *result.head)
    if policy := result.outcome.policy:
      thresholds.write(folder / moderation.THRESHOLDS, policy)
    before = gate / certified.REPORT
    if before.is_file():
      report = f'{before.read_text(encoding="utf-8")}\n{report}'
    (folder / certified.REPORT).write_text(report, encoding='utf-8')


def read(
  reader: said_lib.Reader, head: judge.Head, rows: rows_lib.Rows
) -> Read:
  """Returns what a head gives each row, as a server's engine scores it.

  Raises:
    ValueError: a text is too long for the model, or the model gives a token no
      finite numbers.
  """
  params, _ = head
  w_DC, bias_C = (np.asarray(params[name]) for name in ('w_DC', 'bias_C'))
  score = {}
  for role in said_lib.ROLES:
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


def low(score_TC: np.ndarray, part: float) -> np.ndarray:
  """Returns [C], below all of which a part of the tokens is.

  In each dimension as many tokens are below it as in the others.
  """
  rank_TC = np.argsort(np.argsort(score_TC, axis=0), axis=0)
  level = np.quantile(rank_TC.max(axis=1), part) / max(1, len(score_TC) - 1)
  return np.quantile(score_TC, level, axis=0)


def _fit(
  reader: said_lib.Reader, rows: rows_lib.Rows, task: Task
) -> tuple[judge.Head, str]:
  linear_model, library = certified.sklearn()
  rng = np.random.default_rng(task.seed)
  states_SD, text_S = _states(reader, rows, rng)
  begins = np.unique(text_S, return_index=True)[1]
  # Both roles of a text, one behind the other, are two texts here.
  label_MC = np.tile(rows.label_NC, (len(said_lib.ROLES), 1))
  is_drawn_S = _draw(text_S, begins, rng)
  models = []
  for c in range(len(rows.names)):
    model = linear_model.LogisticRegression(C=task.c, max_iter=1000)
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


def _states(
  reader: said_lib.Reader, rows: rows_lib.Rows, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
  """Returns hidden states [S, D] of all texts in each role, and whose they are.

  Where they would be more than `_KEPT`, each text keeps as many as the others.
  """
  placed = [
    reader.place(row.text, role) for role in said_lib.ROLES for row in rows.rows
  ]
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
  """Returns bool [S], `_DRAWN` tokens of each text at most."""
  is_drawn_S = np.zeros(len(text_S), bool)
  for begin, end in zip(begins, [*begins[1:], len(text_S)]):
    is_drawn_S[begin + rng.permutation(end - begin)[:_DRAWN]] = True
  return is_drawn_S


def _highest(
  logit_S: np.ndarray, text_S: np.ndarray, begins: np.ndarray
) -> np.ndarray:
  """Returns where each text's highest token is."""
  order = np.lexsort((-logit_S, text_S))
  return order[begins]


def _check(policy: thresholds.Policy) -> None:
  """Refuses a policy whose head does not claim enough by itself.

  The gate may claim the rest for prompts, but it reads no replies.
  """
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


def _at_once(replies: list[np.ndarray], tier: thresholds.Tier) -> float:
  low_C = [limit.low for limit in tier.limits]
  return float(np.mean((np.concatenate(replies) < low_C).all(axis=1)))


def _released_share(
  replies: list[np.ndarray], tier: thresholds.Tier, hold: int
) -> float:
  """Returns the part of violating replies' tokens that are released."""
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
