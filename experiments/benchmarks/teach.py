"""Measure what distillation costs beside a forward pass and a training step.

    python -m experiments.benchmarks.teach [--preset=4m] [--draws=50]
        [--of=teaching,reading]

Processor time in one process, in turn:

    forward     a teacher's logits of every token, and nothing more
    teach       the same, sampled, fetched, encoded and written into a store;
                target: 0.8 of the speed of `forward` or more
    rows        making a batch of the tiny configuration on the host, without
                the targets of a store and with them
    step        its training step, as language modelling
    run         batches through the loader into the step, as a run does it:
                language modelling, and distillation with the targets.
                Reading, the difference of the two kinds of rows, should take
                at most 15 % of a step. Rows are drawn in a thread of their
                own, so that with a free core a run pays nothing.

The teacher has random parameters and the store random targets, with as many
entries as there can be: the worst case for sampling, writing and reading.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
import tempfile
from typing import Annotated
from typing import Literal

from kaiju_jax.distillation import config as distillation_config
from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is measured."""

  # What is measured.
  of: tuple[Literal['teaching', 'reading'], ...] = ('teaching', 'reading')
  # Shape of the teacher.
  preset: str = '4m'
  # V of the teacher.
  vocabulary: Annotated[int, flags.Bounds(256)] = 4096
  # How it is sampled.
  method: Literal[*distillation_config.METHODS] = 'systematic'
  # Points, and slots, per token.
  draws: flags.Positive = 50
  # Tokens per row of the teacher.
  length: flags.Positive = 512
  # Rows that it reads at a time.
  batch: flags.Positive = 8
  # Batches per round.
  batches: flags.Positive = 4
  # Rounds.
  repeats: flags.Positive = 5


_FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = _FLAGS.read(argv)
  from kaiju_jax.experiments.benchmarks.parts import teaching

  for part in settings.of:
    with tempfile.TemporaryDirectory() as folder:
      teaching.PARTS[part](pathlib.Path(folder), settings).show()


if __name__ == '__main__':
  command.run(main)
