"""Write the texts of an experiment from what every Python carries.

    python -m experiments.texts --of=mixes --out=runs/mixes/texts
    python -m experiments.texts --of=annealing --out=runs/annealing/text
    python -m experiments.texts --of=practice --out=practice.jsonl
    python -m experiments.train --config=sft:runs/chat \\
      --config.data.path=practice.jsonl --workdir=runs/practised
    python -m experiments.texts --of=questions --text=my/texts --out=asked.jsonl

Nothing is downloaded. The texts differ between versions of Python.

mixes       the standard library by kind, a document per module (configs/mixes):
            source_code, source_comments, source_docstrings, source_messages and
            source_sessions.jsonl, the sessions of half of the modules;
            target_sessions.jsonl, those of the other half; and
            target_reference.jsonl, the language reference, by topic
annealing   clean.jsonl, its docstrings; noisy.jsonl, those of other modules
            with half of their words made random letters (configs/annealing)
practice    conversations of `experiments.persona --generated`, eight messages
            each, with other characters: a small chat model that is fine-tuned
            on them knows the form of that test, and nothing about its
            characters
questions   conversations that ask for a sentence in a passage of --text: a
            student with windows learns to find it (`tasks/needle/chats.py`)
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Literal

from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # Which texts.
  of: Literal['mixes', 'annealing', 'practice', 'questions']
  # A new folder; a new .jsonl file of --of=practice and --of=questions.
  out: str
  # Conversations of these two.
  count: flags.Positive = 3000
  # Seed of their draws.
  seed: flags.NonNegative = 0
  # With --of=questions: what passages are cut from, a file, folder or glob; by
  # default the prose and code of the running Python's standard library.
  text: str = ''
  # With --of=questions: characters of a passage.
  size: flags.Positive = 3000


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.experiments.studies import python_texts
  from kaiju_jax.storage import files
  from kaiju_jax.storage import folders
  from kaiju_jax.tasks.dialogues import golden
  from kaiju_jax.tasks.needle import chats

  out = flags.folder('out', settings.out)
  if settings.of == 'annealing':
    python_texts.write_annealing(out)
    return
  folders.refuse_existing(settings.out)
  if settings.of == 'mixes':
    python_texts.write(settings.out)
  elif settings.of == 'practice':
    files.write_json_lines(out, golden.practice(settings.count, settings.seed))
  else:
    chosen = settings.text, settings.count, settings.size, settings.seed
    files.write_json_lines(out, chats.draw_from(*chosen))
  print(f'Written: {pathlib.Path(settings.out)}')


if __name__ == '__main__':
  command.run(main)
