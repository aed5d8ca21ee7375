"""Asks trained arms, or a served model, what they recall."""

import pathlib

from kaiju_jax.experiments.configs import recall as config
from kaiju_jax.experiments.studies import arms
from kaiju_jax.experiments.studies import recall_report
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.runs import flags
from kaiju_jax.runs import grid
from kaiju_jax.storage import folders
from kaiju_jax.tasks.recall import asking as recall
from kaiju_jax.tasks.recall import problems
from kaiju_jax.tasks.recall import rows

_ROWS = 16


def ask_served(settings: settings_lib.Recall) -> None:
  """Asks a model or a server; prints, writes and ends with the decision."""
  if settings.out:
    folders.refuse_existing(settings.out)
  kinds = flags.choose('kinds', settings.kinds, problems.KINDS)
  lengths = settings.lengths
  seed = settings.evaluation_seed
  questions = recall.draw(kinds, lengths, settings.questions, seed)
  responder, name, digest = settings.responder.open(_ROWS, chats=False)
  answered = recall.ask(responder, questions)
  records = recall.count_right(answered, name, seed)
  decision = decision_lib.decide(
    recall.NAME,
    list(recall.served_checks(records, settings.least)),
    report.plain({'records': [one._asdict() for one in records]}),
    {'responder': digest, 'questions': f'seed {seed}'},
  )
  text = '\n'.join(recall_report.tables(records, {}, 0))
  report.Report().say(text).decide(decision).conclude(settings.out)


def ask_trained(settings: settings_lib.Recall) -> None:
  """Trains and asks the arms; what is finished is not repeated."""
  if settings.report:
    figures.require_figures()
  out = pathlib.Path('runs/recall')
  if settings.out is not None:
    out = flags.folder('out', settings.out)
  jobs = grid.cross(
    config.get_config,
    flags.choose('arms', settings.arms, config.ARMS),
    settings.seeds,
    out,
  )
  questions = arms.RecallQuestions(settings.questions, settings.evaluation_seed)
  again = arms.command(
    'recall',
    out,
    questions=questions.questions,
    evaluation_seed=questions.seed,
  )
  grid.run(jobs, settings.jobs, arms.asks(questions), again)
  if settings.report:
    records = arms.read_records(jobs, questions, rows.Record)
    decision, text = recall_report.publish(records, jobs, out)
    print(text)
    decision_lib.finish(decision)
