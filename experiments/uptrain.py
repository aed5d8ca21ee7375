"""Makes a Kaiju student of a trained model: the start of another run.

    python -m experiments.uptrain --model=runs/teacher --out=starts/student \\
        --start=fitted --text=my/texts --layout='L0 L1 L1 G3' --window=16
    python -m experiments.train --config=starts/student/config.py \\
        --workdir=runs/student

The teacher is a workdir, an export or any Hugging Face folder that
`experiments.import_hf` reads; each of its layers makes its own keys and values.
Its heads are merged, layers of one owner share a projection, and windows and
int8 are the student's. `--start=mean` takes means; `--start=fitted` reads a
text with the teacher and fits keys and values to it in closed form
(`kaiju_jax/interchange/surgery/`). The folder holds float32 weights in our own
format, so that `experiments.generate --model=…` shows at once what was lost,
and config.py: a run that begins with the student and, with `data.teacher` if
need be, brings it back.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.runs import command
from kaiju_jax.runs import uptrain

_MODEL = flags.DEFINE_string(
  'model', None, 'Workdir, export, or Hugging Face folder of the teacher.'
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')
_START = flags.DEFINE_enum(
  'start',
  'mean',
  uptrain.STARTS,
  "Whether keys and values begin as means of the teacher's, or as a fit to"
  ' them over a text.',
)
_TEXT = flags.DEFINE_string(
  'text',
  '',
  'Text of a fitted start, a file, folder or glob; config.py names it as the'
  " run's.",
)
_TOKENS = flags.DEFINE_integer(
  'tokens', uptrain.MEAN.tokens, 'Tokens of the text that the fit reads.'
)
_LAYOUT = flags.DEFINE_string(
  'layout',
  '',
  "The student's layers, such as 'L0 L0 L0 G3': L local or G global, and the"
  " layer whose keys and values each reads; 'L L L G' lets a fitted start"
  ' choose pairs that share. By default six local layers to a global one,'
  ' shared by three local and by two global ones.',
)
_WINDOW = flags.DEFINE_integer(
  'window',
  0,
  "Positions that a local layer sees, itself included; 0 for the teacher's, or"
  ' 128 where it has no local layers.',
)
_KV_HEADS = flags.DEFINE_integer(
  'num_kv_heads', 1, "Heads of keys and values; a divisor of the teacher's."
)
_INT8 = flags.DEFINE_bool('int8', True, 'Whether the student is int8.')
_OWNERS = flags.DEFINE_enum(
  'owners',
  'mean',
  ['mean', 'own'],
  'Under --start=mean, what the layers that share a projection get: the mean of'
  ' theirs, or that of the layer that owns it.',
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL, _OUT)
  print(
    uptrain.write(
      _MODEL.value,
      _OUT.value,
      uptrain.Student(
        _LAYOUT.value, _WINDOW.value, _KV_HEADS.value, _INT8.value
      ),
      uptrain.Start(_START.value, _OWNERS.value, _TEXT.value, _TOKENS.value),
    )
  )


if __name__ == '__main__':
  command.run(main)
