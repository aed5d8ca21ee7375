"""What does reading a teacher's targets cost a training step?

    python -m experiments.benchmarks.teacher_reading [--draws=50]

The tiny configuration (`experiments/configs/tiny.py`) and a store of targets of
its whole training text, drawn at random with as many entries per token as there
can be. Processor time in one process, in turn:

    rows       making a batch on the host, without the targets and with them
    step       the training step itself, as language modelling
    run        batches through the loader into the step, as a run does it:
               language modelling, and distillation with the targets

Target: reading, the difference of the two kinds of rows, at most 15 % of a
step. Rows are drawn in a thread of their own, ahead of the step, so that with a
free core a run pays nothing.
"""

from collections.abc import Sequence
import itertools
import pathlib
import tempfile

from absl import flags

from kaiju_jax.runs import command

_DRAWS = flags.DEFINE_integer('draws', 50, 'Points, and slots, per token.')
_BATCHES = flags.DEFINE_integer('batches', 8, 'Batches per round.')
_REPEATS = flags.DEFINE_integer('repeats', 5, 'Rounds.', lower_bound=1)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  from . import processor_time

  with tempfile.TemporaryDirectory() as folder:
    seconds = processor_time.medians(
      _contenders(pathlib.Path(folder)), _REPEATS.value
    )
  for name, spent in seconds.items():
    milliseconds = 1e3 * spent / _BATCHES.value
    print(f'{name:18} {milliseconds:8.2f} ms of processor time per batch')
  reading = seconds['rows with targets'] - seconds['rows']
  share = reading / seconds['step']
  verdict = 'met' if share <= 0.15 else 'MISSED'
  print(f'reading / step: {share:.1%} (target 15 % or less: {verdict})')
  ratio = seconds['run with targets'] / seconds['run']
  print(f'run with targets / run: {ratio:.2f}')


def _contenders(folder: pathlib.Path):
  """Returns what is timed, each over the same number of batches."""
  from kaiju_jax.data import loader
  from kaiju_jax.data import text
  from kaiju_jax.data import tokenizer
  from kaiju_jax.distillation import read

  from ..configs import tiny
  from . import timed_step

  experiment = tiny.get_config()
  data = experiment.data
  corpus, _ = text.load(data, tokenizer.Bytes())
  store = _written(folder, corpus)
  reader = read.Reader(store, text.digest(corpus))
  plain = text.Rows(corpus, data.length)
  taught = text.Rows(corpus, data.length, beside=reader)

  def drawing(rows):
    # New rows in every round, as in a run; none is cached but by chance.
    first = itertools.count(step=_BATCHES.value * data.batch)

    def draw():
      begin = next(first)
      for number in range(_BATCHES.value * data.batch):
        rows[begin + number]
      return ()

    return draw

  distilled = tiny.get_config()
  distilled.objective.name = 'distillation'
  distilled.objective.distillation.entries = _DRAWS.value
  fixed = timed_step.batch(experiment)

  def running(experiment, rows):
    step, state = timed_step.ours(experiment)
    batches = loader.batches(rows, data.batch)
    held = [state]

    def run():
      for _ in range(_BATCHES.value):
        held[0], value = step(held[0], next(batches))
      return value

    return run

  step = timed_step.runner(*timed_step.ours(experiment), fixed, _BATCHES.value)
  return {
    'rows': drawing(plain),
    'rows with targets': drawing(taught),
    'step': step,
    'run': running(experiment, plain),
    'run with targets': running(distilled, taught),
  }


def _written(folder: pathlib.Path, corpus) -> pathlib.Path:
  """Returns a store of random targets of a corpus."""
  import numpy as np

  from kaiju_jax.data import text
  from kaiju_jax.distillation import config as distillation_config
  from kaiju_jax.distillation import record
  from kaiju_jax.distillation import store
  from kaiju_jax.distillation import write

  draws, tokens = _DRAWS.value, len(corpus.tokens)
  sampling = distillation_config.Sampling(draws=draws, entries=draws)
  settings = store.Settings(sampling, 256, '', '', 512, 4)
  rng = np.random.default_rng(0)
  block = 2**16
  ids_NT = np.argsort(rng.random((block, 256)), axis=1)[:, :draws]
  ones_NT = np.ones((block, draws), np.int32)
  with write.Writer(
    folder / 'store', settings, text.digest(corpus), 'text', tokens
  ) as writer:
    while writer.next < tokens:
      count = min(block, tokens - writer.next)
      writer.add(record.Targets(ids_NT[:count], ones_NT[:count]))
  return folder / 'store'


if __name__ == '__main__':
  command.run(main)
