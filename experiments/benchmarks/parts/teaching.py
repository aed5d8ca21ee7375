"""What does distillation cost beside a forward pass and a training step?

    python -m experiments.benchmarks.teach [--preset=4m] [--draws=50]
        [--of=teaching,reading]

Processor time in one process, in turn:

    forward     a teacher's logits of every token, and nothing more
    teach       the same, sampled, fetched, encoded and written into a store;
                target: 0.8 of the speed of `forward` or more
    rows        making a batch of the tiny configuration on the host, without
                the targets of a store and with them
    step        its training step, as language modelling
    run         batches through the loader into the step, as a run does it:
                language modelling, and distillation with the targets.
                Reading, the difference of the two kinds of rows, should take
                at most 15 % of a step. Rows are drawn in a thread of their
                own, so that with a free core a run pays nothing.

The teacher has random parameters and the store random targets, with as many
entries as there can be: the worst case for sampling, writing and reading.
"""

from collections.abc import Sequence
import itertools
import pathlib
import tempfile
import time

from absl import flags

from kaiju_jax.distillation import config as distillation_config
from kaiju_jax.reporting import report
from kaiju_jax.runs import command

_OF = flags.DEFINE_list('of', ['teaching', 'reading'], 'What is measured.')
_PRESET = flags.DEFINE_string('preset', '4m', 'Shape of the teacher.')
_VOCABULARY = flags.DEFINE_integer(
  'vocabulary', 4096, 'V of the teacher.', lower_bound=256
)
_METHOD = flags.DEFINE_enum(
  'method', 'systematic', distillation_config.METHODS, 'How it is sampled.'
)
_DRAWS = flags.DEFINE_integer('draws', 50, 'Points, and slots, per token.')
_LENGTH = flags.DEFINE_integer('length', 512, 'Tokens per row of the teacher.')
_BATCH = flags.DEFINE_integer('batch', 8, 'Rows that it reads at a time.')
_BATCHES = flags.DEFINE_integer('batches', 4, 'Batches per round.')
_REPEATS = flags.DEFINE_integer('repeats', 5, 'Rounds.', lower_bound=1)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  for part in command.choose(_OF, ('teaching', 'reading')):
    with tempfile.TemporaryDirectory() as folder:
      if part == 'teaching':
        _say_teaching(_seconds(_teaching(pathlib.Path(folder))))
      else:
        _say_reading(_seconds(_reading(pathlib.Path(folder))))


def _seconds(contenders) -> dict[str, float]:
  from kaiju_jax.kernels import timing

  return timing.medians(contenders, _REPEATS.value, clock=time.process_time)


def _say_teaching(seconds: dict[str, float]) -> None:
  tokens = _BATCHES.value * _BATCH.value * _LENGTH.value
  for name, spent in seconds.items():
    print(f'{name:8} {tokens / spent:10,.0f} tokens/s of processor time')
  ratio = seconds['forward'] / seconds['teach']
  met = report.verdict('0.80 or more', ratio >= 0.8)
  print(f'teach / forward: {ratio:.2f} ({met})')


def _say_reading(seconds: dict[str, float]) -> None:
  for name, spent in seconds.items():
    milliseconds = 1e3 * spent / _BATCHES.value
    print(f'{name:18} {milliseconds:8.2f} ms of processor time per batch')
  reading = seconds['rows with targets'] - seconds['rows']
  share = reading / seconds['step']
  met = report.verdict('15 % or less', share <= 0.15)
  print(f'reading / step: {share:.1%} ({met})')
  ratio = seconds['run with targets'] / seconds['run']
  print(f'run with targets / run: {ratio:.2f}')


def _teaching(folder: pathlib.Path):
  """Returns what is timed: each reads the same batches."""
  import jax

  from kaiju_jax.data import config as data_config
  from kaiju_jax.data import text
  from kaiju_jax.data import tokenizer
  from kaiju_jax.distillation import store
  from kaiju_jax.distillation import teach
  from kaiju_jax.distillation import write
  from kaiju_jax.model import batches
  from kaiju_jax.model import presets
  from kaiju_jax.model import transformer
  from kaiju_jax.runs import teach as teach_runs
  from kaiju_jax.training import state

  config = presets.preset(_PRESET.value)
  config.vocab_size = _VOCABULARY.value
  model = transformer.Transformer(config)
  variables = {'params': state.init_params(model, 0)}
  corpus, _ = text.load(data_config.DataConfig(), tokenizer.Bytes())
  length, batch = _LENGTH.value, _BATCH.value
  read = list(
    itertools.islice(
      teach.read_batches(corpus, length, batch, 0.25), _BATCHES.value
    )
  )
  sampling = distillation_config.Sampling(
    _METHOD.value, draws=_DRAWS.value, entries=_DRAWS.value
  )
  settings = store.Settings(sampling, config.vocab_size, '', '', length, batch)
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
    with write.Writer(
      folder / name, settings, 'a' * 32, name, tokens
    ) as writer:
      for one, drawn in teach_runs.answers(answer, variables, read):
        writer.add(teach.targets(one, drawn))
    return ()

  return {'forward': forward, 'teach': teaching}


def _reading(folder: pathlib.Path):
  """Returns what is timed, each over the same number of batches."""
  from kaiju_jax.data import loader
  from kaiju_jax.data import text
  from kaiju_jax.data import tokenizer
  from kaiju_jax.distillation import read
  from kaiju_jax.experiments.benchmarks.parts import timed_step

  from ..configs import tiny

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
