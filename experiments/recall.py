"""Recall: several keys, chains and counts, in trained or served models.

    python -m experiments.recall [--arms=full,global_1] [--seeds=0,1,2]
    python -m experiments.recall --model=runs/chat --lengths=32,64
    python -m experiments.recall --endpoint=http://127.0.0.1:8000/v1

The kinds are RULER's (Hsieh et al. 2024); the generators are ours.

Without a model, it trains each arm (one layout) of `experiments/configs/
recall.py` on each seed in <out>/<arm>/seed<S>, and asks how many steps of a
chain each layout follows. A number of steps counts only where full attention of
equal depth has 95 % right on every seed. Otherwise it is not evaluated, and the
exit status is 4. It writes recall.png, report.md and decision.json into the
folder. The same command goes on where it was stopped.

With --model (a workdir, an export or a Hugging Face folder; one that does not
chat continues the question and "Answer:") or --endpoint (a server with OpenAI's
chat completions; its key is in OPENAI_API_KEY), the same rows are asked in
English:

    --kinds      all by default
    --lengths    tokens of the rows before they are translated; one of filler
                 becomes a sentence of five words
    --least      the share of right answers that each kind must be shown to
                 have: exit status 3 if not, and 4 without it
"""

from collections.abc import Sequence
import pathlib

from absl import app
from absl import flags

from kaiju_jax.experiments import shared_flags
from kaiju_jax.runs import command

_ARMS = flags.DEFINE_list('arms', None, 'Arms to compare; all by default.')
_SEEDS = command.define_seeds('0', 'Seeds of the training.')
_OUT = flags.DEFINE_string(
  'out', None, 'Where everything is written; runs/recall without a model.'
)
_QUESTIONS = flags.DEFINE_integer(
  'questions', 256, 'Questions per kind and length.', lower_bound=1
)
_EVALUATION_SEED = flags.DEFINE_integer(
  'evaluation_seed', 0, 'Seed of the questions.', lower_bound=0
)
_AT_ONCE = flags.DEFINE_integer(
  'jobs', None, 'Runs at once; by default one per core.', lower_bound=1
)
_REPORT = flags.DEFINE_bool(
  'report', True, 'Whether the report of trained arms is made.'
)
_RESPONDER = shared_flags.define_responder()
_KINDS = flags.DEFINE_list('kinds', None, 'Kinds to ask; all by default.')
_LENGTHS = flags.DEFINE_list('lengths', ['64', '128'], 'Tokens per row.')
_LEAST = flags.DEFINE_float(
  'least', None, 'Share of right answers that must be shown.', 0.0, 1.0
)
_ROWS = 16


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  model, endpoint = _RESPONDER.model.value, _RESPONDER.endpoint.value
  if model and endpoint:
    raise app.UsageError('either --model or --endpoint must be given.')
  if model or endpoint:
    _ask_served()
  else:
    _ask_trained()


def _ask_served() -> None:
  from kaiju_jax.experiments.studies import recall_report
  from kaiju_jax.reporting import decision as decision_lib
  from kaiju_jax.reporting import report
  from kaiju_jax.storage import folders
  from kaiju_jax.tasks.recall import asking as recall
  from kaiju_jax.tasks.recall import problems

  if _OUT.value:
    folders.refuse_existing(_OUT.value)
  kinds = command.choose(_KINDS, problems.KINDS)
  lengths = command.numbers(_LENGTHS, int)
  seed = _EVALUATION_SEED.value
  questions = recall.draw(kinds, lengths, _QUESTIONS.value, seed)
  responder, name, digest = _RESPONDER.open(_ROWS, chats=False)
  answered = recall.ask(responder, questions)
  records = recall.count_right(answered, name, seed)
  decision = decision_lib.decide(
    recall.NAME,
    list(recall.served_checks(records, _LEAST.value)),
    report.plain({'records': [one._asdict() for one in records]}),
    {'responder': digest, 'questions': f'seed {seed}'},
  )
  text = '\n'.join(recall_report.tables(records, {}, 0))
  report.Report().say(text).decide(decision).conclude(_OUT.value)


def _ask_trained() -> None:
  """Trains and asks the arms; what is finished is not repeated."""
  from kaiju_jax.experiments.configs import recall as config
  from kaiju_jax.experiments.studies import arms
  from kaiju_jax.experiments.studies import recall_report
  from kaiju_jax.reporting import decision as decision_lib
  from kaiju_jax.reporting import figures
  from kaiju_jax.runs import grid
  from kaiju_jax.tasks.recall import rows

  if _REPORT.value:
    figures.require_figures()
  out = pathlib.Path('runs/recall')
  if _OUT.value is not None:
    out = command.folder(_OUT)
  jobs = grid.cross(
    config.get_config,
    command.choose(_ARMS, config.ARMS),
    command.seeds(_SEEDS),
    out,
  )
  questions = arms.RecallQuestions(_QUESTIONS.value, _EVALUATION_SEED.value)
  again = arms.command(
    'recall',
    out,
    questions=questions.questions,
    evaluation_seed=questions.seed,
  )
  grid.run(jobs, _AT_ONCE.value, arms.asks(questions), again)
  if _REPORT.value:
    records = arms.read_records(jobs, questions, rows.Record)
    decision, text = recall_report.publish(records, jobs, out)
    print(text)
    decision_lib.finish(decision)


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
