"""Runs lm-eval's tasks on a model, without a network.

Tasks are lm-eval's own YAML files in a folder of the user's, which name local
files of JSON. `export` writes such a task of a file of documents: its bits per
byte.
"""

from collections.abc import Sequence
import json
import os
import pathlib
import re
import tempfile
from typing import Any

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.experiments.studies import lm_eval_model
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from kaiju_jax.storage import folders

TASK = 'text'
_YAML = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ''
doc_to_target: '{{{{text}}}}'
metric_list:
  - metric: bits_per_byte
  - metric: byte_perplexity
metadata:
  version: 1
"""


def export_file(out: str, path: str) -> int:
  """Exports a file's documents, which blank lines separate; returns how many.

  Raises:
    OSError, ValueError: as `export`; or the file cannot be read.
  """
  text = pathlib.Path(path).read_text(encoding='utf-8')
  texts = [one for one in re.split(r'\n\s*\n', text) if one.strip()]
  export(out, texts)
  return len(texts)


def export(out: str | os.PathLike, texts: Sequence[str]) -> None:
  """Writes a task of the bits per byte of documents: `text.yaml` and its data.

  Args:
    out: a new folder.
    texts: the documents.

  Raises:
    FileExistsError, OSError: the folder exists, or cannot be written.
    ValueError: no documents, or an empty one.
  """
  if not texts or not all(texts):
    raise ValueError(
      f'{len(texts)} documents: must be one or more, none empty.'
    )
  file = pathlib.Path(out).absolute() / f'{TASK}.jsonl'
  with folders.write_whole(out) as folder:
    lines = [json.dumps({'text': text}) + '\n' for text in texts]
    (folder / file.name).write_text(''.join(lines), encoding='utf-8')
    written = _YAML.format(name=TASK, file=json.dumps(str(file)))
    (folder / f'{TASK}.yaml').write_text(written, encoding='utf-8')


def open_model(
  path: str,
  rows: int,
  played: play.Player = play.SERVED,
) -> tuple[Any, dict[str, str]]:
  """Returns a model as lm-eval takes it, and what it is.

  Args:
    path: a workdir, an export or a Hugging Face folder.
    rows: texts that it continues at once.
    played: how it is played.

  Raises:
    ImportError: lm-eval is not installed.
    OSError, RuntimeError, ValueError: as `load.from_anywhere`.
  """
  loaded = played.load(path)
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  decoder = play.decoder(
    loaded, tokenizer, rows=rows, length=played.length, cache=played.cache
  )
  generator = generator_lib.Generator(decoder, tokenizer)
  about = {'origin': loaded.origin, 'weights': load.digest(loaded)}
  return lm_eval_model.make(generator, tokenizer, decoder.length), about


def evaluate(
  model: Any,
  tasks: Sequence[str],
  include: str | os.PathLike,
  limit: int | None = None,
) -> dict[str, dict[str, float]]:
  """Returns lm-eval's figures by task and metric.

  lm-eval gets its data from local files alone: the Hugging Face libraries are
  told that there is no network, which they read when they are first imported.

  Args:
    model: of `open_model`, or any other of lm-eval's.
    tasks: names of tasks.
    include: the folder of their YAML files.
    limit: documents of each task; None for all.

  Raises:
    ImportError: lm-eval is not installed.
    ValueError: a task that the folder does not have.
  """
  for name in 'HF_HUB_OFFLINE', 'HF_DATASETS_OFFLINE', 'HF_EVALUATE_OFFLINE':
    os.environ.setdefault(name, '1')
  import datasets
  import lm_eval
  from lm_eval import tasks as tasks_lib

  manager = tasks_lib.TaskManager(
    include_path=str(include), include_defaults=False
  )
  if unknown := sorted({*tasks} - {*manager.all_tasks}):
    raise ValueError(
      f'tasks={unknown[0]}: {include} has {", ".join(manager.all_tasks)}.'
    )
  with tempfile.TemporaryDirectory() as cache:
    datasets.config.HF_DATASETS_CACHE = pathlib.Path(cache)
    found = lm_eval.simple_evaluate(
      model,
      tasks=list(tasks),
      task_manager=manager,
      limit=limit,
      bootstrap_iters=0,
      log_samples=False,
    )
  return {
    task: {
      name.removesuffix(',none'): float(value)
      for name, value in figures.items()
      if isinstance(value, (int, float)) and '_stderr' not in name
    }
    for task, figures in found['results'].items()
  }
