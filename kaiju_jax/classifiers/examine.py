"""Certifies a token-level head, and examines classifiers on texts."""

import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.classifiers import heads
from kaiju_jax.classifiers import hidden_states
from kaiju_jax.classifiers import planted
from kaiju_jax.classifiers import refusal
from kaiju_jax.classifiers import refusal_report
from kaiju_jax.classifiers import scores
from kaiju_jax.classifiers import settings as settings_lib
from kaiju_jax.classifiers import train_head
from kaiju_jax.classifiers import two_sets
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import report
from kaiju_jax.runs import play
from kaiju_jax.serving.safety import blocked
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import thresholds
from kaiju_jax.storage import folders


class Examined(NamedTuple):
  """What was found."""

  page: report.Report  # The report.
  decision: decision_lib.Decision  # Whether the classifier passes.
  passed: tuple[
    Any, ...
  ]  # Blocked texts that would pass; empty without --blocked.


def certify_head(
  model: str,
  safety: str,
  out: str,
  texts: settings_lib.Texts,
  head: str | None = None,
  confidence: float | None = None,
  arm: play.Spread = play.SERVED,
) -> train_head.TrainedHead:
  """Trains or reads a head, certifies it, and writes its folder.

  Args:
    model: a workdir, an export or a Hugging Face folder.
    safety: folder of a gate and its thresholds.
    out: the new folder.
    texts: labelled texts.
    head: a head of any model of the same width; None to train one.
    confidence: must be that of the gate's thresholds, or None.
    arm: how the model is served.

  Raises:
    ImportError: scikit-learn is missing.
    OSError, ValueError: something cannot be read or written, or does not fit.
  """
  folders.refuse_existing(out)
  gate = moderation.Moderator().load(safety).policy
  if confidence not in (None, gate.confidence):
    raise ValueError(
      f'--confidence={confidence}: the thresholds in --safety={safety} were'
      f' counted with {gate.confidence}.'
    )
  rows = texts.read()
  loaded = arm.load(model)
  found = heads.load(head, loaded.config.d_model) if head else None
  reader = hidden_states.Reader(loaded, arm.tensor)
  result = train_head.train(reader, rows, gate, texts.division, found)
  train_head.write(result, safety, out, heads.list_digests(model, loaded))
  return result


def examine(settings: settings_lib.Refusal) -> Examined:
  """Examines a classifier, and writes what was found into a new folder.

  Raises:
    OSError, ValueError: something cannot be read or written, or does not fit.
  """
  sets = _read_sets(settings)
  halves = sets.halves(settings.seed)
  moderator = moderation.Moderator()
  newer = moderator.load(settings.safety)
  older = moderator.load(settings.against) if settings.against else None
  reader, head = _read_head(settings)

  def score(version):
    return [
      scores.score(version, rows, settings.judge, reader, head)
      for rows in halves
    ]

  scored = score(newer)
  whole = scored[0].join(scored[1])
  if settings.served:
    counted, stage = whole, refusal.count_served(whole, settings.confidence)
    refused = {tier: whole.find_refused(tier) for tier in thresholds.TIERS}
  else:
    counted = scored[1]
    stage = refusal.choose_and_count(*scored, settings.confidence)
    refused = refusal.find_refused(counted, stage)
  changes, raised, replay = (), (), None
  if older:
    first, second = score(older)
    changes = tuple(refusal.compare(whole, first.join(second)))
  if settings.raise_:
    raised = tuple(refusal.raise_thresholds(*scored, settings.confidence))
  if settings.blocked:
    version = older or newer
    records = blocked.read(settings.blocked)
    replay = blocked.replay(records, version.gate, version.policy)
  found = refusal_report.Findings(
    stage=stage,
    slices=tuple(refusal.count_slices(counted, refused, sets.by_text())),
    raised=raised,
    changes=changes,
    replay=replay,
    confidence=settings.confidence,
  )
  decision = decision_lib.decide(
    'refusal', list(found.checks()), found.figures(), _inputs(settings, halves)
  )
  page = refusal_report.page(f'Refusals of {settings.safety}', found, decision)
  with folders.write_whole(settings.out) as out:
    decision_lib.write(out / decision_lib.FILE, decision)
    page.save(out)
  return Examined(page, decision, replay.passed if replay else ())


def _read_sets(settings: settings_lib.Refusal) -> two_sets.Sets:
  if settings.planted:
    return planted.draw_two_sets(settings.seed)
  return two_sets.Sets(
    two_sets.read(settings.adversarial), two_sets.read(settings.benign)
  )


def _read_head(settings: settings_lib.Refusal) -> tuple[Any, Any]:
  """Returns the model that the head reads, and the head; None without it."""
  if settings.judge == 'gate':
    return None, None
  loaded = settings.arm.load(settings.model)
  reader = hidden_states.Reader(loaded, settings.arm.tensor)
  return reader, heads.load(settings.head, loaded.config.d_model)


def _inputs(settings: settings_lib.Refusal, halves) -> dict[str, str]:
  """Returns the SHA-256 of what was read."""
  chosen, counted = (rows.digest for rows in halves)
  return {'chosen on': chosen, 'counted on': counted} | {
    name: decision_lib.digest(pathlib.Path(path))
    for name in ('safety', 'against', 'head')
    if (path := getattr(settings, name))
  }
