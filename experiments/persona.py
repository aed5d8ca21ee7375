"""Does a model stay in character? Scores golden conversations, and decides.

    python -m experiments.persona --judge=rules --model=runs/chat
    python -m experiments.persona --judge=rules --model=runs/chat \\
      --generated=200 --out=persona

plays conversations of eight turns with characters of three tiers, and scores
speech, backstory and goal from 1 to 5. It passes if exact bounds show, per
tier, that at least half of all conversations score 4.2 or more. The exit status
is 0 if it passes, 3 if it is refused, and 4 if there are too few conversations:
200 per tier are needed, and the 24 of `experiments/golden/` decide nothing.

    --golden     your own conversations; experiments/golden/README says how
    --generated  so many generated ones per tier instead, from the dialogues of
                 the small chat model
    --endpoint   asks a server with OpenAI's chat completions instead of --model
                 (the key is read from OPENAI_API_KEY)
    --references scores the authors' own replies: what the judge gives at most
    --swapped    lets each model play another character: what the judge gives
                 to a wrong persona
    --forced     each turn follows the references instead of the own replies
    --watch      decision.json of an earlier run: refuses a drop of more than
                 --most, on 50 conversations per tier and more

--judge must be spelt out:

    rules          phrases that replies must hold: rules see words, not meaning
    http://…/v1    a server with OpenAI's chat completions, and --judge_model
    FOLDER         a model, which must not be the one that is judged

A judge that reads decides only with --calibration: decision.json of
`experiments.judge`, at most 31 days old, about the same judge.
"""

from collections.abc import Sequence
import datetime

from absl import app
from absl import flags

from kaiju_jax.experiments import shared_flags
from kaiju_jax.runs import command

_RESPONDER = shared_flags.define_responder()
_REFERENCES = flags.DEFINE_bool(
  'references', False, "Score the authors' own replies."
)
_CONVERSATIONS = shared_flags.define_conversations()
_JUDGE = shared_flags.define_judge()
_SWAPPED = flags.DEFINE_bool(
  'swapped', False, 'Let the model play another character than asked for.'
)
_FORCED = flags.DEFINE_bool(
  'forced', False, 'Let each turn follow the reference replies.'
)
_WATCH = flags.DEFINE_string(
  'watch', None, 'decision.json of an earlier run to compare with.'
)
_MOST = flags.DEFINE_float(
  'most', 0.2, 'The largest drop that --watch allows: 0.2 is 5 points of 100.'
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')
_TEMPERATURE = flags.DEFINE_float(
  'temperature', 0.0, 'Of the sampling; 0 is greedy.', lower_bound=0.0
)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of all draws.', lower_bound=0)
_ROWS = flags.DEFINE_integer(
  'rows', 16, 'Conversations that a model plays side by side.', lower_bound=1
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _JUDGE.judge)
  named = _RESPONDER.model, _RESPONDER.endpoint, _REFERENCES
  given = [bool(x.value) for x in named]
  if sum(given) != 1:
    raise app.UsageError(
      'exactly one of --model, --endpoint and --references must be given.'
    )
  _CONVERSATIONS.check()
  _run()


def _run() -> None:
  from kaiju_jax.evaluation.persona import dialogue
  from kaiju_jax.evaluation.persona import responders
  from kaiju_jax.gates import persona
  from kaiju_jax.gates import persona_judge
  from kaiju_jax.reporting import decision as decision_lib
  from kaiju_jax.reporting import report
  from kaiju_jax.storage import folders

  if _OUT.value:
    folders.refuse_existing(_OUT.value)
  before = shared_flags.load_decision(_WATCH)
  calibration = shared_flags.load_decision(_JUDGE.calibration)
  conversations, source = _CONVERSATIONS.read(_SEED.value)
  judge = _JUDGE.read(_RESPONDER.player)
  responder, name, identity = _responder()
  persona_judge.refuse_own(judge.identity, identity)
  if _SWAPPED.value:
    responder = responders.Swapped(responder, conversations)
  replies = dialogue.play(responder, conversations, _FORCED.value, _ROWS.value)
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
    checks += persona.drop_checks(judged, before.figures['scores'], _MOST.value)
  else:
    checks += persona.checks(judged)
  decision = decision_lib.decide(
    'persona',
    checks,
    found,
    {'golden': source, 'responder': name, 'judge': judge.identity},
  )
  run = 'forced run' if _FORCED.value else 'free run'
  who = f'{name}, another persona' if _SWAPPED.value else name
  page = report.Report()
  title = f'Persona by {judge.identity}, {run}: {who}'
  persona.add_tables(page, title, found)
  page.decide(decision).conclude(_OUT.value)


def _responder():
  """Returns the responder, its name, and its identity among judges."""
  from kaiju_jax.evaluation.persona import responders

  if _REFERENCES.value:
    return responders.References(), 'references', ''
  return _RESPONDER.open(_ROWS.value, _TEMPERATURE.value, _SEED.value)


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
