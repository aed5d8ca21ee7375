"""Measure how long commands take to their first step and first token.

    python -m experiments.benchmarks.startup [--repeats=3] [--before=FOLDER]
    python -m experiments.benchmarks.startup --command=serve --model=FOLDER

Starts `experiments.train` on the tiny configuration and
`experiments.generate` on what it trained, each in a fresh process, and notes
the processor time (user and system seconds of all threads, which other work on
the machine changes little) and the wall time until the first record of
metrics.jsonl, or the first character on stdout, is there. `experiments.serve`
is there when /readyz says so. Contenders take turns:

    before       another checkout of the project, named by --before, without a
                 compilation cache
    first start  with a compilation cache that is empty
    later start  with the cache that the first start has filled

The process is killed once the time is noted. Linux alone (/proc).
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Literal

from absl import app

from kaiju_jax.experiments.benchmarks.parts import startup
from kaiju_jax.runs import command
from kaiju_jax.runs import flags
from kaiju_jax.storage import files


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is started."""

  # Commands to start.
  command: tuple[Literal['train', 'generate', 'serve'], ...] = (
    *('train', 'generate'),
  )
  # The model that is served.
  model: str | None = None
  # Root of another checkout, started with its own commands.
  before: str | None = None
  # Rounds, each starting every contender once.
  repeats: flags.Positive = 3
  # File that gets the seconds, too.
  json: str | None = None
  # Start once, with a small model: no figure to keep.
  rehearse: bool = False


_FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = _FLAGS.read(argv)
  if ('serve' in settings.command) != bool(settings.model):
    raise app.UsageError('--model and --command=serve need each other.')
  page, found = startup.measure(settings)
  page.show()
  if settings.json:
    files.write_json(pathlib.Path(settings.json), found)


if __name__ == '__main__':
  command.run(main, compiles=False)
