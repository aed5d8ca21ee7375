"""Accept or refuse a judge of personas, by scores that people gave.

    python -m experiments.judge --judge=runs/judge --labels=labels.jsonl

`experiments.persona` decides with a judge that reads only if this command has
accepted it within the last 31 days: its agreement with people (quadratic κ) is
at least 0.6 in each property and its bias at most 0.25, it does not reward
length, and prefers the same replies in both orders. It takes 50 labels of the
last 31 days (`evaluation/persona/labels.py`), 20 pairs among them.
"""

from collections.abc import Sequence
import dataclasses
import datetime
import pathlib

from kaiju_jax.gates import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags
from kaiju_jax.runs import play


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # rules, a server's address or a model.
  judge: str
  # The server's name of its model.
  judge_model: str = ''
  # People's scores, a JSONL file.
  labels: str
  # The conversations that labels name.
  golden: str = str(settings_lib.GOLDEN)
  # decision.json of an earlier calibration of this judge.
  before: str | None = None
  # Answers of a server per conversation.
  samples: flags.Positive = 1
  # A folder that keeps a server's answers.
  answers: str | None = None
  player: play.Player
  # A new folder.
  out: str | None = None


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.evaluation.persona import golden
  from kaiju_jax.evaluation.persona import labels
  from kaiju_jax.gates import persona_judge
  from kaiju_jax.gates import players
  from kaiju_jax.reporting import decision as decision_lib
  from kaiju_jax.storage import folders

  if settings.out:
    folders.refuse_existing(settings.out)
  rated = labels.load(settings.labels, golden.load(settings.golden))
  judge = players.open_judge(
    settings.judge,
    settings.judge_model,
    settings.samples,
    settings.answers,
    settings.player,
  )
  decision = persona_judge.calibrate(
    judge,
    rated,
    datetime.date.today(),
    {
      'golden': decision_lib.digest(pathlib.Path(settings.golden)),
      'labels': decision_lib.digest(pathlib.Path(settings.labels)),
    },
    settings_lib.load_decision(settings.before),
  )
  persona_judge.page(decision).conclude(settings.out)


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
