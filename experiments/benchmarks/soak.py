r"""Watch whether a server's memory stays flat while people come and leave.

    python -m experiments.benchmarks.soak --model=runs/chat --minutes=30
        [--talkers=6] [--json=PATH] [--figure=PATH]

Starts `experiments.serve` as a process of its own. Talkers open conversations
with its characters, talk some turns, leave in the middle of replies, and remove
what they began. Every few seconds the server's resident memory, open files and
threads are read from /proc. Printed are the memory at the end of the warm-up
and at the end, its slope, and the requests and refusals. Linux only.
"""

from collections.abc import Sequence
import dataclasses
from typing import Annotated

from kaiju_jax.experiments.benchmarks import harness
from kaiju_jax.reporting import figures
from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Who talks, and for how long."""

  # A workdir, an export or a Hugging Face folder.
  model: str
  # How long.
  minutes: Annotated[float, flags.Bounds(0.1)] = 30.0
  # People at once.
  talkers: flags.Positive = 6
  # Seconds between two looks.
  every: Annotated[float, flags.Bounds(0.1)] = 5.0
  # Where the figures go as JSON.
  json: str | None = None
  # Where the figure goes (png).
  figure: str | None = None


_FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = _FLAGS.read(argv)
  from kaiju_jax.experiments.benchmarks.parts import soak

  page, looks, counts = soak.measure(settings)
  page.show()
  harness.keep({'looks': looks, 'counts': counts}, settings.json)
  if settings.figure:
    drawn = figures.figure(6, 3)
    axes = drawn.subplots()
    axes.plot([x.seconds / 60 for x in looks], [x.memory for x in looks])
    axes.set_xlabel('minutes')
    axes.set_ylabel('resident memory, MiB')
    axes.set_ylim(bottom=0)
    figures.save(drawn, settings.figure)


if __name__ == '__main__':
  command.run(main)
