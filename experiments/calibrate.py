"""Fits the limits of stored keys and values to a text, and writes an export.

    python -m experiments.calibrate --model=runs/chat --text=chats.jsonl \\
      --out=chat.kaiju

Training follows the largest values of its text with one limit per channel, if
model.quantization.kv_scale='channel'. This command takes the largest values of
another text instead. Whether the model keeps its characters then, says
`experiments.gate`:

    --text        prose, or a .jsonl file of conversations
    --per_tensor  gives each int8 weight one scale, not one per output channel
"""

from collections.abc import Sequence

from absl import app
from absl import flags

from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string('model', None, 'A workdir or an export.')
_TEXT = flags.DEFINE_string('text', None, 'The text that limits are fitted to.')
_PER_TENSOR = flags.DEFINE_bool(
  'per_tensor', False, 'Give each int8 weight one scale.'
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL, _OUT)
  if not (_TEXT.value or _PER_TENSOR.value):
    raise app.UsageError('--text or --per_tensor must be given.')
  from kaiju_jax.gates import calibrate
  from kaiju_jax.storage import folders

  folders.refuse_existing(_OUT.value)
  calibrate.write(
    _MODEL.value, _OUT.value, _TEXT.value or '', _PER_TENSOR.value
  )
  print(f'Written: {_OUT.value}')


if __name__ == '__main__':
  command.run(main)
