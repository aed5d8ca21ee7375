"""Does a trained run give the same through its cache and its kernels?

    python -m experiments.needle --arms=kaiju
    python -m experiments.agreement --model=runs/needle/kaiju/seed0 \\
        [--of=cache] [--rows=8] [--prompt=128] [--chunk=64]
    python -m experiments.agreement --model=runs/needle/kaiju/seed0 \\
        --of=answers [--questions=16] [--mode=fast,reference]
    python -m experiments.agreement --model=runs/needle/kaiju/seed0 \\
        --of=kernels [--questions=16] [--attention=chunked,pallas_gpu]

Compares with one forward pass, as in training:

- cache: held-out text (a needle run's questions, where the run has no text)
  with a prompt in chunks and then token by token: the loss per token, the
  logits, the greedy tokens, and the codes of keys and values;
- answers: a needle run's questions, with the prompt in chunks into a cache and
  then the answer token by token: the accuracy over the grid;
- kernels: the same questions with each implementation of attention. What this
  platform cannot run is interpreted: the kernel's own arithmetic, tile by tile.
"""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import dataclasses

from absl import app
from absl import flags

from kaiju_jax.reporting import report
from kaiju_jax.runs import command

# The flags that each comparison reads, beside --model.
_READ = {
  'cache': ('rows', 'chunk', 'prompt'),
  'answers': ('rows', 'chunk', 'questions', 'seed', 'mode'),
  'kernels': ('questions', 'seed', 'attention'),
}
_MODEL = flags.DEFINE_string('model', None, 'Workdir of one run.')
_OF = flags.DEFINE_enum('of', 'cache', list(_READ), 'The comparison.')
_ROWS = flags.DEFINE_integer(
  'rows', 8, 'Texts, or sequences that the cache holds.', lower_bound=1
)
_CHUNK = flags.DEFINE_integer(
  'chunk', 64, 'Tokens per call of the prefill.', lower_bound=1
)
_PROMPT = flags.DEFINE_integer(
  'prompt', None, 'Tokens that are run in chunks; half of a text by default.'
)
_QUESTIONS = flags.DEFINE_integer(
  'questions', 16, 'Questions per cell of the grid.', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of the questions.', lower_bound=0)
_MODE = flags.DEFINE_list('mode', ['fast'], "The decoder's modes.")
_ATTENTION = flags.DEFINE_list(
  'attention',
  ['chunked', 'pallas_gpu', 'pallas_tpu'],
  'Implementations of attention.',
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL)
  read = _READ[_OF.value]
  for name in sorted({name for names in _READ.values() for name in names}):
    if name not in read and flags.FLAGS[name].present:
      raise app.UsageError(
        f'--of={_OF.value} does not read --{name}; it reads'
        f' {", ".join(f"--{one}" for one in read)}.'
      )
  compare = {'cache': _cache, 'answers': _answers, 'kernels': _kernels}
  report.Report().add(compare[_OF.value]()).show()


def _cache() -> report.Table:
  from kaiju_jax.experiments.studies import cached_agreement
  from kaiju_jax.runs import load
  from kaiju_jax.tasks import registry as tasks

  found = load.from_workdir(_MODEL.value)
  tokens_BL = tasks.texts(found.experiment, _ROWS.value)
  rows, length = tokens_BL.shape
  prompt = length // 2 if _PROMPT.value is None else _PROMPT.value
  counted = cached_agreement.compare(
    found.params,
    found.experiment.model,
    tokens_BL,
    prompt=prompt,
    chunk=_CHUNK.value,
    page=_CHUNK.value,
    replica=found.replica,
  )
  return report.Table(
    _counts(counted),
    ('compared', 'found'),
    f'{_MODEL.value}: {rows} texts of {length} tokens, {prompt} of them'
    f' in chunks of {_CHUNK.value}',
  )


def _counts(counted):
  """Yields what was counted, in words and numbers."""
  yield 'loss, one forward pass', f'{counted.loss:.6f} nats per token'
  yield 'loss, through the cache', f'{counted.cached_loss:.6f} nats per token'
  yield 'relative difference', f'{counted.loss_difference:.1e}'
  yield 'largest logit', f'{counted.largest_logit:.3f}'
  yield 'largest difference', f'{counted.largest_difference:.2e}'
  tokens = counted.tokens
  yield 'greedy tokens', f'{counted.greedy_differs:,} of {tokens:,} differ'
  yield 'largest margin of those', f'{counted.greedy_margin:.2e}'
  sums = dict(counted.codes)
  if sums:
    sums['all'] = map(sum, zip(*sums.values()))
  for layer, (codes, differ) in sums.items():
    yield (
      f'codes, {layer if layer == "all" else f"layer {layer}"}',
      f'{differ:,} of {codes:,} differ ({100 * differ / codes:.3f} %)',
    )


def _answers() -> report.Table:
  from kaiju_jax.evaluation import cached_answers
  from kaiju_jax.runs import load
  from kaiju_jax.runs import play

  found = load.from_workdir(_MODEL.value)
  comparison = _Comparison(found)
  for mode in _MODE.value:
    decoder = play.decoder(
      found, None, rows=_ROWS.value, length=comparison.length, mode=mode
    )
    read = cached_answers.reader(decoder, _CHUNK.value)
    comparison.add(f'through the cache, {mode}', read)
  return comparison.table()


def _kernels() -> report.Table:
  from kaiju_jax.kernels import dispatch
  from kaiju_jax.kernels.visibility_attention import api
  from kaiju_jax.runs import load

  names = command.choose(_ATTENTION, api.RUNS_ON)
  comparison = _Comparison(load.from_workdir(_MODEL.value))
  for name in names:
    runs_here = dispatch.platform() in api.RUNS_ON[name]
    with contextlib.nullcontext() if runs_here else dispatch.interpret():
      comparison.add(
        f'{name}, {"compiled" if runs_here else "interpreted"}',
        comparison.forward(name),
      )
  return comparison.table()


class _Comparison:
  """The questions of a needle run, and who answers how many of them."""

  def __init__(self, found):
    from kaiju_jax.tasks import registry as tasks
    from kaiju_jax.tasks.needle import questions as needle

    self._found = found
    data = found.experiment.data
    self._task = tasks.questions(data)
    self._cells = needle.grid(self._task, data.length, _QUESTIONS.value)
    self.length = max(cell.length for cell in self._cells)
    self._right = {}
    self.add('one forward pass', self.forward(found.experiment.model.attention))

  def forward(self, attention: str | None) -> Callable:
    """Returns what answers in one forward pass with this attention."""
    from kaiju_jax.evaluation import answers
    from kaiju_jax.training import step

    experiment = self._found.experiment
    model = dataclasses.replace(experiment.model, attention=attention)
    return answers.reader(
      answers.predictor(
        step.model_of(dataclasses.replace(experiment, model=model))
      ),
      self._found.params,
      {cell.length for cell in self._cells},
    )

  def add(self, name: str, read: Callable) -> None:
    """Asks all questions."""
    from kaiju_jax.tasks.needle import questions as needle

    self._right[name] = needle.accuracy(
      read, self._task, self._cells, [_SEED.value]
    )

  def table(self) -> report.Table:
    """Returns a row for each, with the points to the forward pass."""
    (name, own), *others = self._right.items()
    total = sum(cell.count for cell in self._cells)
    return report.Table(
      [
        (name, f'{100 * own:.2f}', ''),
        *(
          (name, f'{100 * right:.2f}', f'{100 * (right - own):+.2f}')
          for name, right in others
        ),
      ],
      ('how', 'right, %', 'points'),
      f'{_MODEL.value}: {total:,} questions of up to {self.length} tokens',
    )


if __name__ == '__main__':
  command.run(main)
