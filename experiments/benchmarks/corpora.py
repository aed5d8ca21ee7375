"""Measure the seconds that mixing, selecting and comparing documents take.

    python -m experiments.benchmarks.corpora [--documents=10000] [--words=400]

The documents are random words of a Zipf distribution, half of them in a target
and half in four sources. Reading files is not included.
"""

from collections.abc import Sequence
import dataclasses
from typing import Annotated

from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True)
class Settings:
  """Which documents."""

  # How many documents.
  documents: Annotated[int, flags.Bounds(20)] = 10_000
  # Words of each.
  words: Annotated[int, flags.Bounds(20)] = 400


_FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = _FLAGS.read(argv)
  from kaiju_jax.experiments.benchmarks.parts import corpora

  corpora.measure(settings.documents, settings.words).show()


if __name__ == '__main__':
  command.run(main)
