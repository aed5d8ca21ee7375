r"""Measure how many of the cache's hits a restart keeps, and how soon.

    python -m experiments.benchmarks.restart --model=runs/chat \
        [--sessions=24] [--turns=4] [--points_size=1GiB]

Starts `experiments.serve` as a process of its own, has people talk with its
characters, and ends it (SIGTERM). Then it starts a server on a copy of the
folder for each kind of --points, and each conversation takes one more turn. A
row has the share of prompt tokens that were cached in the last turns before
the end and in those after it, the seconds that reading the points took, that
the start and the end took as a whole, and the files.
"""

from collections.abc import Sequence
import dataclasses

from kaiju_jax.reporting import report
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

_COLUMNS = (
  *('points', 'hits before', 'after', 'kept', 'points back', 'start', 'end'),
  *('files', 'MiB'),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """What people do before the end, and what the server is started with."""

  # A workdir, an export or a Hugging Face folder.
  model: str
  # Conversations.
  sessions: flags.Positive = 24
  # Turns of each before the end.
  turns: flags.Positive = 4
  # Tokens of a reply.
  tokens: flags.Positive = 24
  # As of serve.
  points_size: str = '1GiB'
  # As of serve.
  cache: str = '1GiB'


_FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = _FLAGS.read(argv)
  from kaiju_jax.experiments.benchmarks.parts import restart

  rows = [
    (
      row.points,
      f'{100 * row.before:.1f} %',
      f'{100 * row.after:.1f} %',
      f'{100 * row.after / row.before:.1f} %' if row.before else None,
      f'{row.restored:.2f} s',
      f'{row.ready:.1f} s',
      f'{row.stopped:.1f} s',
      row.files,
      f'{row.size:.1f}',
    )
    for row in restart.measure(settings)
  ]
  report.Report().table(rows, _COLUMNS).show(as_markdown=True)


if __name__ == '__main__':
  command.run(main)
