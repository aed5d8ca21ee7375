"""Runs lm-eval's tasks on a model, without a network.

Tasks are lm-eval's own YAML files in a folder of the user's, which name local
files of JSON. `export` writes such a task of a file of documents: its bits per
byte. The extra `harness` installs lm-eval (Gao 2024). A context opens with the
tokenizer's `bos_id`, as documents do in training.
"""

from collections.abc import Sequence
import json
import os
import pathlib
import re
import tempfile
from typing import Any

import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib
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


def export(out: str | os.PathLike[str], texts: Sequence[str]) -> None:
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
  decoder = played.decoder(loaded, tokenizer, rows)
  generator = generator_lib.Generator(decoder, tokenizer)
  about = {'origin': loaded.origin, 'weights': load.digest(loaded)}
  return make(generator, tokenizer, decoder.length), about


def evaluate(
  model: Any,
  tasks: Sequence[str],
  include: str | os.PathLike[str],
  limit: int | None = None,
  metadata: str = '{}',
) -> dict[str, dict[str, float]]:
  """Returns lm-eval's figures by task and metric.

  lm-eval gets its data from local files alone: the Hugging Face libraries are
  told that there is no network, which they read when they are first imported.

  Args:
    model: of `open_model`, or any other of lm-eval's.
    tasks: names of tasks.
    include: the folder of their YAML files.
    limit: documents of each task; None for all.
    metadata: of all tasks, beside their own: an object of JSON.

  Raises:
    ImportError: lm-eval is not installed.
    ValueError: a task that the folder does not have, or metadata of another
      form.
  """
  if not isinstance(given := json.loads(metadata), dict):
    raise ValueError(f'metadata={metadata}: must be an object.')
  for name in 'HF_HUB_OFFLINE', 'HF_DATASETS_OFFLINE', 'HF_EVALUATE_OFFLINE':
    os.environ.setdefault(name, '1')
  import datasets
  import lm_eval
  from lm_eval import tasks as tasks_lib

  manager = tasks_lib.TaskManager(
    include_path=str(include), include_defaults=False, metadata=given
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


# Tokens that a task's answer may have where the task says nothing; lm-eval's.
_ANSWER = 256

# A text and its continuation, and the tokens of both.
_Pair = tuple[tuple[str, str], Sequence[int], Sequence[int]]


class Scoring:
  """What lm-eval asks of a model; `make` joins it with lm-eval's own class.

  Args:
    generator: the model; nothing else uses it meanwhile.
    tokenizer: its tokenizer.
    length: tokens of a row, text and continuation.
  """

  def __init__(
    self,
    generator: generator_lib.Generator,
    tokenizer: tokenizer_lib.Tokenizer,
    length: int,
  ):
    super().__init__()
    self._generator = generator
    self._tokens = tokenizer
    self._length = length

  @property
  def eot_token_id(self) -> int:
    """The token that stands between documents."""
    return self._tokens.bos_id

  @property
  def tokenizer_name(self) -> str:
    """A hash of the tokenizer, for lm-eval's cache of requests."""
    return tokenizer_lib.digest(self._tokens)

  def tok_encode(
    self, string: str, add_special_tokens: bool | None = None, **_: Any
  ) -> list[int]:
    """Returns a text's tokens; opened by `bos_id` unless that is refused."""
    opening = [] if add_special_tokens is False else [self._tokens.bos_id]
    return opening + self._tokens.encode(string).tolist()

  def _loglikelihood_tokens(
    self, requests: Sequence[_Pair], **_: Any
  ) -> list[tuple[float, bool]]:
    """Returns each continuation's log-probability, and whether greedy draws it.

    What is longer than a row loses its beginning.
    """
    found = []
    for texts, context, continuation in requests:
      tokens = [*context, *continuation][-self._length :]
      count = min(len(continuation), len(tokens) - 1)
      scores = self._generator.score(np.array(tokens, np.int32))
      own_L = scores.log_probability_L[len(tokens) - 1 - count :]
      greedy_L = scores.is_likeliest_L[len(tokens) - 1 - count :]
      answer = float(np.sum(own_L, dtype=np.float64)), bool(greedy_L.all())
      found.append(answer)
      if texts is not None:
        self.cache_hook.add_partial('loglikelihood', texts, answer)
    return found

  def loglikelihood_rolling(
    self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[float]:
    """Returns the log-probability of whole documents, windows of a row each."""
    from lm_eval import utils

    del disable_tqdm
    found = []
    for text, *_ in (one.args for one in requests):
      windows = utils.get_rolling_token_windows(
        token_list=self.tok_encode(text, add_special_tokens=False),
        prefix_token=self.eot_token_id,
        max_seq_len=self._length - 1,
        context_len=1,
      )
      pairs = [(None, *utils.make_disjoint_window(one)) for one in windows]
      scores = self._loglikelihood_tokens(pairs)
      found.append(float(sum(score for score, _ in scores)))
      self.cache_hook.add_partial('loglikelihood_rolling', (text,), found[-1])
    return found

  def generate_until(
    self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[str]:
    """Returns continuations up to a stop string or a number of tokens.

    Raises:
      ValueError: a setting that is not supported; names it.
      request.BadLogits: the logits were no numbers.
    """
    del disable_tqdm
    asked = [self._request(*one.args) for one in requests]
    results = self._generator.generate(asked)
    for one, result in zip(requests, results):
      if result.error is not None:
        raise result.error
      self.cache_hook.add_partial('generate_until', one.args, result.text)
    return [result.text for result in results]

  def _request(
    self, text: str, settings: dict[str, Any]
  ) -> request_lib.Request:
    settings = dict(settings)
    until = settings.pop('until', None) or []
    most = settings.pop('max_gen_toks', None) or _ANSWER
    temperature = settings.pop('temperature', None)
    if not settings.pop('do_sample', temperature is not None):
      temperature = 0.0
    seed = settings.pop('seed', 0)
    if settings:
      name, value = settings.popitem()
      raise ValueError(
        f'generation_kwargs.{name}={value!r}: must be one of until,'
        ' max_gen_toks, temperature, do_sample, seed.'
      )
    most = min(most, self._length - 1)
    return request_lib.Request(
      self.tok_encode(text)[-(self._length - most) :],
      most,
      sampling_lib.Sampling(
        temperature=1.0 if temperature is None else temperature, seed=seed
      ),
      stop_strings=[until] if isinstance(until, str) else until,
    )


def make(
  generator: generator_lib.Generator,
  tokenizer: tokenizer_lib.Tokenizer,
  length: int,
) -> Any:
  """Returns a `TemplateLM`; arguments as `Scoring`.

  Raises:
    ImportError: lm-eval is not installed.
  """
  try:
    from lm_eval.api import model
  except ImportError as error:
    raise ImportError(
      "experiments.harness needs lm-eval: pip install 'kaiju_jax[harness]'."
    ) from error
  kind = type('Model', (Scoring, model.TemplateLM), {})
  return kind(generator, tokenizer, length)
