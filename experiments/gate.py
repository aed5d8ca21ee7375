"""May a quantized model replace its baseline? Plays and reads with both.

    python -m experiments.gate --baseline=runs/chat --candidate=chat.kaiju \\
      --judge=rules --generated=200 --out=gated

Both models play the same golden conversations and read them with the
references as replies. The candidate passes if, per tier of 200 conversations
and more, its mean score is shown to be at least 4.0 and not to have dropped by
more than 0.12; if KL, likeliest tokens and bits per byte stay within their
limits, for the character's prefix, the user's messages and the character's
replies apart; and if no layer has more codes at the rail or more outlier
channels; and if at most 2 of 100 questions that the baseline recalls are shown
to be lost. The exit status is 0 if it passes, 3 if it is refused, and 4 if
something was not evaluated, such as a score of too few conversations.

    --golden      your own conversations; experiments/golden/README says how
    --generated   so many generated ones per tier instead
    --judge       as in `experiments.persona`, with --judge_model, --calibration
    --needle      what is recalled: facts of the small chat model's characters,
                  or a kind of `experiments.recall`, with --needle_length; with
                  '' nothing is, and the exit status is 4 at best
    --calibration_diff=A,B
                  two models, such as one before and after it was calibrated
                  again: the report names each layer's scales and limits that
                  moved far. Or two JSONL files of the conversations that they
                  were calibrated on: which share of them is roleplay, and how
                  their words differ. Neither decides anything
    --nopersona   only reads: a model with random weights has no persona and
                  recalls nothing, and the exit status is 4 at best
    --text        prose whose bits per byte count; the conversations otherwise
    --int8, --kv, --dtype, --baseline_int8, --baseline_kv, --baseline_dtype
                  how the models of Hugging Face folders are served: the
                  candidate all in int8 and the baseline in floats by default
"""

from collections.abc import Sequence
import dataclasses
import datetime
import pathlib

from absl import app
from absl import flags

from kaiju_jax.experiments import shared_flags
from kaiju_jax.runs import command

_CANDIDATE = flags.DEFINE_string(
  'candidate', None, 'A workdir, an export or a Hugging Face folder.'
)
_BASELINE = flags.DEFINE_string(
  'baseline', None, 'The model that the candidate would replace.'
)
_CONVERSATIONS = shared_flags.define_conversations()
_JUDGE = shared_flags.define_judge()
_DIFF = flags.DEFINE_list(
  'calibration_diff', None, 'Two models, or two files, that are compared.'
)
_PERSONA = flags.DEFINE_bool(
  'persona', True, 'Play the conversations, not only read them.'
)
_NEEDLE = flags.DEFINE_string(
  'needle', 'multi_key_8', "What is recalled: facts, or a kind; '' for nothing."
)
_NEEDLE_LENGTH = flags.DEFINE_integer(
  'needle_length', 48, 'Tokens of the rows that are asked in English.', 10
)
_NEEDLES = flags.DEFINE_integer(
  'needles', 400, 'Questions of --needle to each model.', lower_bound=1
)
_TEXT = flags.DEFINE_string('text', None, 'A file of prose.')
_PLAYER = shared_flags.define_player("The candidate's")
_BASELINE_ARM = shared_flags.define_arm(
  "The baseline's", 'baseline_', 'none', 'none'
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')
_ROWS = flags.DEFINE_integer(
  'rows', 16, 'Conversations that a model plays side by side.', lower_bound=1
)


def main(argv: Sequence[str]) -> None:
  needed = [_CANDIDATE, _BASELINE]
  command.check(argv, *needed, *([_JUDGE.judge] if _PERSONA.value else []))
  _CONVERSATIONS.check()
  if _DIFF.value and len(_DIFF.value) != 2:
    raise app.UsageError(
      f'--calibration_diff={",".join(_DIFF.value)}: must name two models.'
    )
  _run()


def _run() -> None:
  from kaiju_jax.gates import calibration_diff
  from kaiju_jax.gates import persona_judge
  from kaiju_jax.gates import quantization_gate as gate
  from kaiju_jax.reporting import decision as decision_lib
  from kaiju_jax.storage import folders

  if _OUT.value:
    folders.refuse_existing(_OUT.value)
  conversations, source = _CONVERSATIONS.read()
  diff = calibration_diff.measure(*_DIFF.value) if _DIFF.value else None
  prose = pathlib.Path(_TEXT.value).read_text() if _TEXT.value else ''
  calibration = shared_flags.load_decision(_JUDGE.calibration)
  played = _PLAYER.read()
  pair = gate.Pair(
    baseline=persona_judge.open_model(
      _BASELINE.value,
      _ROWS.value,
      dataclasses.replace(
        _BASELINE_ARM.read(), cache=played.cache, length=played.length
      ),
    ),
    candidate=persona_judge.open_model(_CANDIDATE.value, _ROWS.value, played),
  )
  judge, needle, checks, name = None, None, [], ''
  if _PERSONA.value:
    judge = _JUDGE.read(_PLAYER)
    name = judge.identity
    checks += persona_judge.calibration_checks(
      name, calibration, datetime.date.today()
    )
    if _NEEDLE.value:
      needle = _NEEDLE.value, _NEEDLES.value, _NEEDLE_LENGTH.value
  found = gate.examine(pair, conversations, prose, judge, needle)
  figures = {
    **found.figures,
    'calibration_diff': diff.figures if diff else None,
  }
  decision = decision_lib.decide(
    gate.NAME,
    [*found.checks, *checks],
    figures,
    {
      'golden': source,
      'baseline': pair.baseline.digest,
      'candidate': pair.candidate.digest,
      'judge': name,
    },
  )
  title = f'{pair.candidate.origin} against {pair.baseline.origin}'
  page = gate.page(title, figures, name, found.needle)
  page.add(*(diff.parts if diff else ()))
  page.decide(decision).conclude(_OUT.value)


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
