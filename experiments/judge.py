"""Accepts or refuses a judge of personas, by scores that people gave.

    python -m experiments.judge --judge=runs/judge --labels=labels.jsonl \\
      --out=judged

`experiments.persona` decides with a judge that reads only if this command has
accepted it within the last 31 days. It is accepted if, in each property, its
agreement with people (quadratic κ) is shown to be at least 0.6, its bias is at
most 0.25, and it does not reward length; and if it prefers the same replies in
both orders. 50 labels of the last 31 days are needed, and 20 pairs among them
of replies to the same conversation. The exit status is 0, 3 or 4: accepted,
refused, not evaluated.

    --judge   rules, http://…/v1 with --judge_model, or a model's folder
    --labels  JSONL: a line holds the id of a golden conversation, the replies,
              a person's scores and the day; see
              `kaiju_jax/evaluation/persona/labels.py`
    --before  decision.json of the last time: refuses a bias that has moved

A judge on a server is given golden conversations and labelled replies, and
nothing else.
"""

from collections.abc import Sequence
import datetime
import pathlib

from absl import flags

from kaiju_jax.experiments import shared_flags
from kaiju_jax.runs import command

_GOLDEN_FILE = pathlib.Path(__file__).parent / 'golden' / 'conversations.jsonl'
_JUDGE = flags.DEFINE_string(
  'judge', None, "rules, a server's address or a model."
)
_JUDGE_MODEL = flags.DEFINE_string(
  'judge_model', '', "The server's name of its model."
)
_LABELS = flags.DEFINE_string('labels', None, "People's scores, a JSONL file.")
_GOLDEN = flags.DEFINE_string(
  'golden', str(_GOLDEN_FILE), 'The conversations that labels name.'
)
_BEFORE = flags.DEFINE_string(
  'before', None, 'decision.json of an earlier calibration of this judge.'
)
_SAMPLES = flags.DEFINE_integer(
  'samples', 1, 'Answers of a server per conversation.', lower_bound=1
)
_ANSWERS = flags.DEFINE_string(
  'answers', None, "A folder that keeps a server's answers."
)
_PLAYER = shared_flags.define_player()
_OUT = flags.DEFINE_string('out', None, 'A new folder.')


def main(argv: Sequence[str]) -> None:
  command.check(argv, _JUDGE, _LABELS)
  from kaiju_jax.evaluation.persona import golden
  from kaiju_jax.evaluation.persona import labels
  from kaiju_jax.gates import persona_judge
  from kaiju_jax.reporting import decision as decision_lib
  from kaiju_jax.storage import folders

  if _OUT.value:
    folders.refuse_existing(_OUT.value)
  before = (
    decision_lib.load(pathlib.Path(_BEFORE.value)) if _BEFORE.value else None
  )
  known = golden.load(_GOLDEN.value)
  rated = labels.load(_LABELS.value, known)
  decision = persona_judge.calibrate(
    persona_judge.read(
      _JUDGE.value,
      _JUDGE_MODEL.value,
      _SAMPLES.value,
      _ANSWERS.value,
      _PLAYER.read(),
    ),
    rated,
    datetime.date.today(),
    {
      'golden': decision_lib.digest(pathlib.Path(_GOLDEN.value)),
      'labels': decision_lib.digest(pathlib.Path(_LABELS.value)),
    },
    before,
  )
  persona_judge.page(decision).conclude(_OUT.value)


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
