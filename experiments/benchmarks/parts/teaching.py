"""What distillation costs: a store's writing, and its reading in a step."""

import itertools
import pathlib
import time
from typing import Any

import jax
import numpy as np

from kaiju_jax.data import config as data_config
from kaiju_jax.data import loader
from kaiju_jax.data import text
from kaiju_jax.data.store import corpora
from kaiju_jax.distillation import config as distillation_config
from kaiju_jax.distillation import read as read_lib
from kaiju_jax.distillation import record
from kaiju_jax.distillation import store
from kaiju_jax.distillation import teach
from kaiju_jax.distillation import write
from kaiju_jax.experiments.benchmarks.parts import timed_step
from kaiju_jax.experiments.configs import tiny
from kaiju_jax.kernels import timing
from kaiju_jax.model import batches
from kaiju_jax.model import presets
from kaiju_jax.model import transformer
from kaiju_jax.reporting import report
from kaiju_jax.runs import teach as teach_runs
from kaiju_jax.training import state


def teaching(folder: pathlib.Path, settings: Any) -> report.Report:
  """Returns a teacher's tokens per second, with a store and without."""
  seconds = timing.medians(
    _teaching(folder, settings), settings.repeats, clock=time.process_time
  )
  tokens = settings.batches * settings.batch * settings.length
  rows = [(name, f'{tokens / x:,.0f}') for name, x in seconds.items()]
  ratio = seconds['forward'] / seconds['teach']
  met = report.verdict('0.80 or more', ratio >= 0.8)
  page = report.Report()
  page.table(rows, ('', 'tokens/s of processor time'))
  page.say(f'teach / forward: {ratio:.2f} ({met})')
  return page


def reading(folder: pathlib.Path, settings: Any) -> report.Report:
  """Returns what a step takes, and what the rows of a store add to it."""
  seconds = timing.medians(
    _reading(folder, settings), settings.repeats, clock=time.process_time
  )
  share = (seconds['rows with targets'] - seconds['rows']) / seconds['step']
  met = report.verdict('15 % or less', share <= 0.15)
  page = report.Report()
  page.table(
    [(x, f'{1e3 * y / settings.batches:,.2f}') for x, y in seconds.items()],
    ('', 'ms of processor time per batch'),
  )
  page.say(
    f'reading / step: {share:.1%} ({met})',
    'run with targets / run:'
    f' {seconds["run with targets"] / seconds["run"]:.2f}',
  )
  return page


PARTS = {'teaching': teaching, 'reading': reading}


def _teaching(folder: pathlib.Path, settings: Any):
  """Returns what is timed: each reads the same batches."""
  config = presets.preset(settings.preset)
  config.vocab_size = settings.vocabulary
  model = transformer.Transformer(config)
  variables = {'params': state.init_params(model, 0)}
  corpus, _ = corpora.load(data_config.DataConfig())
  length, batch = settings.length, settings.batch
  read = list(
    itertools.islice(
      teach.read_batches(corpus, length, batch, 0.25), settings.batches
    )
  )
  sampling = distillation_config.Sampling(
    settings.method, draws=settings.draws, entries=settings.draws
  )
  kept = store.Settings(sampling, config.vocab_size, '', '', length, batch)
  answer = teach.answering(model, sampling)

  @jax.jit
  def logits(variables, batch):
    hidden_BLD = batches.hidden(model, variables, batch)
    return model.apply(variables, hidden_BLD, method='logits')

  def forward():
    return [logits(variables, one.batch) for one in read]

  numbers = itertools.count()

  def teaching():
    tokens = int(max(one.number_BL.max() for one in read)) + 1
    name = str(next(numbers))
    with write.Writer(folder / name, kept, 'a' * 32, name, tokens) as writer:
      for one, drawn in teach_runs.answers(answer, variables, read):
        writer.add(teach.targets(one, drawn))
    return ()

  return {'forward': forward, 'teach': teaching}


def _reading(folder: pathlib.Path, settings: Any):
  """Returns what is timed, each over the same number of batches."""
  experiment = tiny.get_config()
  data = experiment.data
  corpus, _ = corpora.load(data)
  store = _written(folder, corpus, settings.draws)
  reader = read_lib.Reader(store, text.digest(corpus))
  plain = text.Rows(corpus, data.length)
  taught = text.Rows(corpus, data.length, beside=reader)

  def drawing(rows):
    # New rows in every round, as in a run; none is cached but by chance.
    first = itertools.count(step=settings.batches * data.batch)

    def draw():
      begin = next(first)
      for number in range(settings.batches * data.batch):
        rows[begin + number]
      return ()

    return draw

  distilled = tiny.get_config()
  distilled.objective.name = 'distillation'
  distilled.objective.distillation.entries = settings.draws
  fixed = timed_step.batch(experiment)

  def running(experiment, rows):
    step, state = timed_step.ours(experiment)
    batches = loader.batches(rows, data.batch)
    held = [state]

    def run():
      for _ in range(settings.batches):
        held[0], value = step(held[0], next(batches))
      return value

    return run

  ours = timed_step.ours(experiment)
  return {
    'rows': drawing(plain),
    'rows with targets': drawing(taught),
    'step': timed_step.runner(*ours, fixed, settings.batches),
    'run': running(experiment, plain),
    'run with targets': running(distilled, taught),
  }


def _written(folder: pathlib.Path, corpus, draws: int) -> pathlib.Path:
  """Returns a store of random targets of a corpus."""
  tokens = len(corpus.tokens)
  sampling = distillation_config.Sampling(draws=draws, entries=draws)
  kept = store.Settings(sampling, 256, '', '', 512, 4)
  rng = np.random.default_rng(0)
  block = 2**16
  ids_NT = np.argsort(rng.random((block, 256)), axis=1)[:, :draws]
  ones_NT = np.ones((block, draws), np.int32)
  with write.Writer(
    folder / 'store', kept, text.digest(corpus), 'text', tokens
  ) as writer:
    while writer.next < tokens:
      count = min(block, tokens - writer.next)
      writer.add(record.Targets(ids_NT[:count], ones_NT[:count]))
  return folder / 'store'
