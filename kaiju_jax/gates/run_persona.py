"""Runs the persona gate: who answers plays the conversations, and is judged."""

import datetime

from kaiju_jax.evaluation.persona import dialogue
from kaiju_jax.evaluation.persona import responders
from kaiju_jax.gates import persona
from kaiju_jax.gates import persona_judge
from kaiju_jax.gates import settings as settings_lib
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import report
from kaiju_jax.storage import folders


def run(settings: settings_lib.Persona) -> report.Report:
  """Plays the conversations, and returns the report with its decision.

  Raises:
    ImportError, OSError, RuntimeError, ValueError: something cannot be read, or
      is refused.
  """
  if settings.out:
    folders.refuse_existing(settings.out)
  before = settings_lib.load_decision(settings.watch)
  calibration = settings_lib.load_decision(settings.judge.calibration)
  conversations, source = settings.conversations.read(settings.seed)
  judge = settings.judge.read(settings.responder.player)
  responder, name, identity = _open(settings)
  persona_judge.refuse_own(judge.identity, identity)
  if settings.swapped:
    responder = responders.Swapped(responder, conversations)
  replies = dialogue.play(
    responder, conversations, settings.forced, settings.rows
  )
  judged = persona.judge(conversations, replies, judge.score)
  found = persona.figures(judged)
  checks = list(
    persona_judge.calibration_checks(
      judge.identity, calibration, datetime.date.today()
    )
  )
  found['rectified'] = report.plain(
    persona_judge.rectify(list(found['scores'].values()), calibration)
  )
  if before:
    persona_judge.refuse_other(judge.identity, before)
    checks += persona.drop_checks(
      judged, before.figures['scores'], settings.most
    )
  else:
    checks += persona.checks(judged)
  decision = decision_lib.decide(
    'persona',
    checks,
    found,
    {'golden': source, 'responder': name, 'judge': judge.identity},
  )
  run = 'forced run' if settings.forced else 'free run'
  who = f'{name}, another persona' if settings.swapped else name
  page = report.Report()
  title = f'Persona by {judge.identity}, {run}: {who}'
  persona.add_tables(page, title, found)
  return page.decide(decision)


def _open(settings: settings_lib.Persona):
  """Returns the responder, its name, and its identity among judges."""
  if settings.references:
    return responders.References(), 'references', ''
  return settings.responder.open(
    settings.rows, settings.temperature, settings.seed
  )
