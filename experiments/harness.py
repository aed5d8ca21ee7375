"""Run tasks of lm-eval on a model, from local files.

    python -m experiments.harness --export=tasks --text=prose.txt
    python -m experiments.harness --model=runs/chat --include=tasks \\
      --tasks=text --out=figures.json

--include is a folder of lm-eval's YAML files, whose `dataset_path` is json and
whose `data_files` are local: nothing is downloaded. --export writes such a
folder of one task, the bits per byte of the documents in --text, which blank
lines separate. lm-eval comes with the extra `harness`.

The same tasks run against a server, by lm-eval itself (docs/gates.md).
"""

from collections.abc import Sequence
import dataclasses
import pathlib

from absl import app

from kaiju_jax.runs import command
from kaiju_jax.runs import flags
from kaiju_jax.runs import play


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # A workdir, an export or a Hugging Face folder.
  model: str | None = None
  # A folder of lm-eval's tasks.
  include: str | None = None
  # Names of tasks in --include.
  tasks: tuple[str, ...] | None = None
  # JSON that all tasks get, as lm-eval's flag of this name.
  metadata: str = '{}'
  # Documents of each task.
  limit: flags.Positive | None = None
  # Texts that are continued at once.
  rows: flags.Positive = 8
  player: play.Player
  # Write a task of --text into this new folder.
  export: str | None = None
  # A file of documents, for --export.
  text: str | None = None
  # A new file for the figures, as JSON.
  out: str | None = None


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.experiments.studies import harness

  if settings.export:
    flags.need(text=settings.text)
    count = harness.export_file(settings.export, settings.text)
    print(f'{settings.export}: {count} documents; --tasks={harness.TASK}')
    return
  flags.need(
    model=settings.model, include=settings.include, tasks=settings.tasks
  )
  if settings.out and pathlib.Path(settings.out).exists():
    raise app.UsageError(f'--out={settings.out}: exists; name a new file.')
  from kaiju_jax.storage import files

  rows, player = settings.rows, settings.player
  model, about = harness.open_model(settings.model, rows, player)
  wanted = settings.include, settings.limit, settings.metadata
  found = harness.evaluate(model, settings.tasks, *wanted)
  for task, figures in found.items():
    for name, value in figures.items():
      print(f'{task}  {name}  {value:.6g}')
  if settings.out:
    files.write_json(pathlib.Path(settings.out), {**about, 'results': found})


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
