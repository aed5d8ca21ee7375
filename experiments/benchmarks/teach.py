"""What does teaching cost beside the teacher's own forward pass?

    python -m experiments.benchmarks.teach [--preset=4m] [--draws=50]

Processor time in one process, the same windows of the Python installation's
text, in turn:

    forward   logits of every token, and nothing more
    teach     the same, sampled, fetched, encoded and written into a store

Target: `teach` at 0.8 of the speed of `forward` or more. The teacher has random
parameters, so that its distributions are open ones, with as many entries as
there can be: the worst case for sampling and writing.
"""

from collections.abc import Sequence
import pathlib
import tempfile

from absl import flags

from kaiju_jax.distillation import config as distillation_config
from kaiju_jax.runs import command

_PRESET = flags.DEFINE_string('preset', '4m', 'Shape of the teacher.')
_VOCABULARY = flags.DEFINE_integer(
  'vocabulary', 4096, 'V of the teacher.', lower_bound=256
)
_METHOD = flags.DEFINE_enum(
  'method', 'systematic', distillation_config.METHODS, 'How it is sampled.'
)
_DRAWS = flags.DEFINE_integer('draws', 50, 'Points per token.')
_LENGTH = flags.DEFINE_integer('length', 512, 'Tokens per row.')
_BATCH = flags.DEFINE_integer('batch', 8, 'Rows at a time.')
_BATCHES = flags.DEFINE_integer('batches', 4, 'Batches per round.')
_REPEATS = flags.DEFINE_integer('repeats', 5, 'Rounds.', lower_bound=1)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  from . import processor_time

  with tempfile.TemporaryDirectory() as folder:
    contenders = _contenders(pathlib.Path(folder))
    seconds = processor_time.medians(contenders, _REPEATS.value)
  tokens = _BATCHES.value * _BATCH.value * _LENGTH.value
  for name, spent in seconds.items():
    print(f'{name:8} {tokens / spent:10,.0f} tokens/s of processor time')
  ratio = seconds['forward'] / seconds['teach']
  verdict = 'met' if ratio >= 0.8 else 'MISSED'
  print(f'teach / forward: {ratio:.2f} (target 0.80 or more: {verdict})')


def _contenders(folder: pathlib.Path):
  """Returns what is timed: each reads the same batches."""
  import itertools

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
  asked = list(
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
    return [logits(variables, one.batch) for one in asked]

  numbers = itertools.count()

  def teaching():
    tokens = int(max(one.number_BL.max() for one in asked)) + 1
    name = str(next(numbers))
    with write.Writer(
      folder / name, settings, 'a' * 32, name, tokens
    ) as writer:
      for one, drawn in teach_runs.answers(answer, variables, asked):
        writer.add(teach.targets(one, drawn))
    return ()

  return {'forward': forward, 'teach': teaching}


if __name__ == '__main__':
  command.run(main)
