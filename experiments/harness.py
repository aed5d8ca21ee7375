"""Runs tasks of lm-eval on a model, from local files.

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
import pathlib
import re

from absl import app
from absl import flags

from kaiju_jax.experiments import shared_flags
from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string(
  'model', None, 'A workdir, an export or a Hugging Face folder.'
)
_INCLUDE = flags.DEFINE_string('include', None, "A folder of lm-eval's tasks.")
_TASKS = flags.DEFINE_list('tasks', None, 'Names of tasks in --include.')
_LIMIT = flags.DEFINE_integer('limit', None, 'Documents of each task.', 1)
_ROWS = flags.DEFINE_integer('rows', 8, 'Texts that are continued at once.', 1)
_PLAYER = shared_flags.define_player()
_EXPORT = flags.DEFINE_string(
  'export', None, 'Write a task of --text into this new folder.'
)
_TEXT = flags.DEFINE_string('text', None, 'A file of documents, for --export.')
_OUT = flags.DEFINE_string('out', None, 'A new file for the figures, as JSON.')


def main(argv: Sequence[str]) -> None:
  if _EXPORT.value:
    command.check(argv, _TEXT)
    _export()
    return
  command.check(argv, _MODEL, _INCLUDE, _TASKS)
  if _OUT.value and pathlib.Path(_OUT.value).exists():
    raise app.UsageError(f'--out={_OUT.value}: exists; name a new file.')
  _evaluate()


def _export() -> None:
  from kaiju_jax.experiments.studies import harness

  text = pathlib.Path(_TEXT.value).read_text(encoding='utf-8')
  texts = [one for one in re.split(r'\n\s*\n', text) if one.strip()]
  harness.export(_EXPORT.value, texts)
  print(f'{_EXPORT.value}: {len(texts)} documents; --tasks={harness.TASK}')


def _evaluate() -> None:
  from kaiju_jax.experiments.studies import harness
  from kaiju_jax.storage import files

  model, about = harness.open_model(_MODEL.value, _ROWS.value, _PLAYER.read())
  found = harness.evaluate(model, _TASKS.value, _INCLUDE.value, _LIMIT.value)
  for task, figures in found.items():
    for name, value in figures.items():
      print(f'{task}  {name}  {value:.6g}')
  if _OUT.value:
    files.write_json(pathlib.Path(_OUT.value), {**about, 'results': found})


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
