"""Print the rows behind a step of a run, such as those of a loss spike.

    python -m experiments.rows --workdir=runs/tiny --step=412

For each row: its source, its documents by name, which of their tokens it holds
(BOS is token 0), and the beginning of their text. The rows are made again from
the run's text, and are those that the step read, bit for bit; a text that has
changed since the run's latest checkpoint is refused. It needs no accelerator.
"""

from collections.abc import Sequence
import dataclasses

from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # The workdir of a run; it may be training.
  workdir: str
  # The step, as in metrics.jsonl.
  step: flags.Positive
  # Characters of text to show per row.
  characters: flags.Positive = 400
  # Of a run with a task of one's own: the config file, or the package's entry
  # point, that brings it. It is executed, and must be as it was.
  parts: str = ''


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.runs import rows

  found = rows.read(settings.workdir, settings.step, settings.parts)
  print('\n'.join(rows.describe(found, settings.characters)))
  if not found.is_checked:
    print('There is no checkpoint that says whether the text is the same.')


if __name__ == '__main__':
  command.run(main)
