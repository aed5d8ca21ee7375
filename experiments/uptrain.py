"""Makes a Kaiju student of a trained model: the start of another run.

    python -m experiments.uptrain --teacher=runs/teacher --out=starts/student \\
        --layout='L0 L0 L0 G3' --window=16
    python -m experiments.train --config=starts/student/config.py \\
        --workdir=runs/student

The teacher is a workdir, an export or a Hugging Face folder of the Arcee class,
with layers that are all global and any number of heads of keys and values. Its
heads become their means, layers of one owner share a projection, and windows
and int8 are the student's. The folder holds float32 weights in our own format,
so that `experiments.generate --model=…` shows at once what was lost, and
config.py: a run that begins with the student and, with `data.teacher` if need
be, brings it back.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.runs import command
from kaiju_jax.runs import uptrain

_TEACHER = flags.DEFINE_string(
  'teacher', None, 'Workdir, export, or Hugging Face folder of the teacher.'
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')
_LAYOUT = flags.DEFINE_string(
  'layout',
  '',
  "The student's layers, such as 'L0 L0 L0 G3': L local or G global, and the"
  ' layer whose keys and values each reads. By default six local layers to a'
  ' global one, shared by three local and by two global ones.',
)
_WINDOW = flags.DEFINE_integer(
  'window', 128, 'Positions that a local layer sees, itself included.'
)
_KV_HEADS = flags.DEFINE_integer(
  'num_kv_heads', 1, "Heads of keys and values; a divisor of the teacher's."
)
_INT8 = flags.DEFINE_bool('int8', True, 'Whether the student is int8.')
_OWNERS = flags.DEFINE_enum(
  'owners',
  'mean',
  ['mean', 'own'],
  'What the layers that share a projection get: the mean of theirs, or that of'
  ' the layer that owns it.',
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _TEACHER, _OUT)
  print(
    uptrain.write(
      _TEACHER.value,
      _OUT.value,
      layout=_LAYOUT.value,
      window=_WINDOW.value,
      num_kv_heads=_KV_HEADS.value,
      int8=_INT8.value,
      owners=_OWNERS.value,
    )
  )


if __name__ == '__main__':
  command.run(main)
