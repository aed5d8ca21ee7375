"""May a quantized model replace its baseline? Plays and reads with both.

    python -m experiments.gate --baseline=runs/chat --candidate=chat.kaiju \\
      --judge=rules --generated=200 --out=gated

Both models play the same golden conversations and read them with the
references as replies. The candidate passes if, per tier of 200 conversations
and more, its mean score is shown to be at least 4.0 and not to have dropped by
more than 0.12; if KL, likeliest tokens and bits per byte stay within their
limits, for the character's prefix, the user's messages and the character's
replies apart; and if no layer has more codes at the rail or more outlier
channels. The exit status is 0 if it passes, 3 if it is refused, and 4 if
something was not evaluated, such as a score of too few conversations.

    --golden      your own conversations; experiments/golden/README says how
    --generated   so many generated ones per tier instead
    --judge       as in `experiments.persona`, with --judge_model, --calibration
    --nopersona   only reads: a model with random weights has no persona, and
                  the exit status is 4 at best
    --text        prose whose bits per byte count; the conversations otherwise
    --int8, --kv, --baseline_int8, --baseline_kv
                  how the models of Hugging Face folders are served: the
                  candidate all in int8 and the baseline in floats by default
"""

from collections.abc import Sequence
import dataclasses
import datetime
import pathlib

from absl import app
from absl import flags

from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import command

_GOLDEN_FILE = pathlib.Path(__file__).parent / 'golden' / 'conversations.jsonl'
_CANDIDATE = flags.DEFINE_string(
  'candidate', None, 'A workdir, an export or a Hugging Face folder.'
)
_BASELINE = flags.DEFINE_string(
  'baseline', None, 'The model that the candidate would replace.'
)
_GOLDEN = flags.DEFINE_string('golden', None, 'Conversations, a JSONL file.')
_GENERATED = flags.DEFINE_integer(
  'generated', 0, 'Generate so many conversations per tier instead.', 0
)
_JUDGE = flags.DEFINE_string(
  'judge', None, "What scores replies: rules, a server's address or a model."
)
_JUDGE_MODEL = flags.DEFINE_string(
  'judge_model', '', "The judging server's name of its model."
)
_CALIBRATION = flags.DEFINE_string(
  'calibration', None, 'decision.json of experiments.judge for this judge.'
)
_PERSONA = flags.DEFINE_bool(
  'persona', True, 'Play the conversations, not only read them.'
)
_TEXT = flags.DEFINE_string('text', None, 'A file of prose.')
_INT8 = flags.DEFINE_enum(
  'int8', 'all', quantization_config.ARMS, "The candidate's weights."
)
_KV = flags.DEFINE_enum(
  'kv', 'int8', ['int8', 'none'], "The candidate's cache."
)
_BASELINE_INT8 = flags.DEFINE_enum(
  'baseline_int8',
  'none',
  quantization_config.ARMS,
  "The baseline's weights.",
)
_BASELINE_KV = flags.DEFINE_enum(
  'baseline_kv', 'none', ['int8', 'none'], "The baseline's cache."
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')
_ROWS = 16


def main(argv: Sequence[str]) -> None:
  needed = [_CANDIDATE, _BASELINE]
  command.check(argv, *needed, *([_JUDGE] if _PERSONA.value else []))
  if _GOLDEN.value and _GENERATED.value:
    raise app.UsageError('either --golden or --generated must be given.')
  _run()


def _run() -> None:
  from kaiju_jax.evaluation import decision as decision_lib
  from kaiju_jax.runs import persona
  from kaiju_jax.runs import persona_judge
  from kaiju_jax.runs import quantization_gate as gate
  from kaiju_jax.runs.corpora import read

  if _OUT.value:
    read.refuse_existing(_OUT.value)
  conversations, source = persona.conversations(
    pathlib.Path(_GOLDEN.value or _GOLDEN_FILE), _GENERATED.value, 0
  )
  prose = pathlib.Path(_TEXT.value).read_text() if _TEXT.value else ''
  calibration = _load(_CALIBRATION)
  baseline = persona_judge.open_model(
    _BASELINE.value,
    _ROWS,
    quantization_config.for_serving(_BASELINE_INT8.value, _BASELINE_KV.value),
  )
  candidate = persona_judge.open_model(
    _CANDIDATE.value,
    _ROWS,
    quantization_config.for_serving(_INT8.value, _KV.value),
  )
  gate.check_pair(baseline, candidate)
  found = gate.read(baseline, candidate, conversations, prose)
  checks, said, name = list(gate.checks_of_reading(found)), (None, None), ''
  if _PERSONA.value:
    judge = persona_judge.read(_JUDGE.value, _JUDGE_MODEL.value)
    name = judge.identity
    for one in baseline, candidate:
      persona_judge.refuse_own(name, f'checkpoint {one.digest}')
    checks += persona_judge.calibration_checks(
      name, calibration, datetime.date.today()
    )
    said = tuple(
      gate.play(one, judge, conversations) for one in (baseline, candidate)
    )
    checks += gate.checks_of_personas(*said)
  else:
    reason = 'Personas were not played (--nopersona).'
    checks.append(decision_lib.Check(decision_lib.NOT_EVALUATED, reason))
  figures = {
    **gate.figures(found, *said),
    'limits': dataclasses.asdict(gate.Limits()),
  }
  decision = decision_lib.decide(
    gate.NAME,
    checks,
    figures,
    {
      'golden': source,
      'baseline': baseline.digest,
      'candidate': candidate.digest,
      'judge': name,
    },
  )
  title = f'# {candidate.origin} against {baseline.origin}\n'
  text = '\n'.join((title, *gate.tables(figures, name)))
  decision_lib.conclude(decision, text, _OUT.value)


def _load(flag: flags.FlagHolder):
  """Returns the decision that a flag names; None without one."""
  from kaiju_jax.evaluation import decision

  return decision.load(pathlib.Path(flag.value)) if flag.value else None


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
