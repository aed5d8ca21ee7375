"""Fit the limits of stored keys and values to a text, and write an export.

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
import dataclasses

from absl import app

from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # A workdir or an export.
  model: str
  # The text that limits are fitted to.
  text: str | None = None
  # Give each int8 weight one scale.
  per_tensor: bool = False
  # A new folder.
  out: str


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  if not (settings.text or settings.per_tensor):
    raise app.UsageError('--text or --per_tensor must be given.')
  from kaiju_jax.gates import calibrate
  from kaiju_jax.storage import folders

  folders.refuse_existing(settings.out)
  calibrate.write(
    settings.model, settings.out, settings.text or '', settings.per_tensor
  )
  print(f'Written: {settings.out}')


if __name__ == '__main__':
  command.run(main)
