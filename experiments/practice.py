"""Writes conversations on which a small chat model practises its characters.

    python -m experiments.practice --out=practice.jsonl
    python -m experiments.train --config=sft:runs/chat \\
      --config.data.path=practice.jsonl --workdir=runs/practised

They are those of `experiments.persona --generated`, eight messages each, with
other characters. A model that is fine-tuned on them knows the form of that
test, and nothing about the characters in it.
"""

from collections.abc import Sequence
import pathlib

from absl import flags

from kaiju_jax.runs import command

_OUT = flags.DEFINE_string('out', None, 'A new .jsonl file.')
_COUNT = flags.DEFINE_integer(
  'count', 3000, 'Conversations to write.', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of all draws.', lower_bound=0)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _OUT)
  from kaiju_jax.storage import files
  from kaiju_jax.storage import folders
  from kaiju_jax.tasks.dialogues import golden

  folders.refuse_existing(_OUT.value)
  practice = golden.practice(_COUNT.value, _SEED.value)
  files.write_json_lines(pathlib.Path(_OUT.value), practice)
  print(f'Written: {_OUT.value}')


if __name__ == '__main__':
  command.run(main)
