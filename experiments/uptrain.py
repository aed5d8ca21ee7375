"""Make a Kaiju student of a trained model: the start of another run.

    python -m experiments.uptrain --model=runs/teacher --out=starts/student \\
        --start=fitted --text=my/texts --layout='L0 L1 L1 G3' --window=16
    python -m experiments.train --config=starts/student/config.py \\
        --workdir=runs/student

The teacher is any model; each of its layers makes its own keys and values. Its
heads are merged, layers of one owner share a projection, and windows and int8
are the student's (`kaiju_jax/interchange/surgery/`). The folder holds float32
weights in our own format, which `experiments.generate` continues, and
config.py: a run that begins with the student and brings it back.

    python -m experiments.uptrain --model=runs/teacher --out=starts/student \\
        --start=fitted --text=my/texts --kv_budget=20971520

finds layers, windows and heads that fit so many bytes of keys and values.

    python -m experiments.uptrain --world=gated --out=runs/uptrain

compares students of a toy teacher (`configs/uptrain.py`) by how they begin.
"""

from collections.abc import Sequence
import dataclasses

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags
from kaiju_jax.runs import uptrain


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # Workdir, export, or Hugging Face folder of the teacher.
  model: str | None = None
  # A new folder; that of all runs with --world, by default runs/uptrain.
  out: str | None = None
  start: uptrain.FirstWeights
  student: uptrain.Student
  budget: uptrain.Budget
  study: settings_lib.UptrainStudy


_OF_A_STUDENT = (
  *uptrain.FirstWeights._fields,
  *uptrain.Student._fields,
  *uptrain.Budget._fields,
)
FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  if settings.study.world:
    from kaiju_jax.experiments.studies import uptrain_study

    FLAGS.refuse_beside('world', 'model', *_OF_A_STUDENT)
    out = 'runs/uptrain' if settings.out is None else settings.out
    uptrain_study.compare(settings.study, flags.folder('out', out))
    return
  flags.need(model=settings.model, out=settings.out)
  print(
    uptrain.write(
      settings.model,
      settings.out,
      settings.student,
      settings.start,
      settings.budget,
    )
  )


if __name__ == '__main__':
  command.run(main, ImportError)
