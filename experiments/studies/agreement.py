"""Compares a trained run through its cache and kernels with a forward pass."""

from collections.abc import Callable
import contextlib
import dataclasses

from kaiju_jax.evaluation import answers
from kaiju_jax.evaluation import cached_answers
from kaiju_jax.experiments.studies import cached_agreement
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.reporting import report
from kaiju_jax.runs import flags
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.tasks.needle import questions as needle
from kaiju_jax.training import step


def compare_cache(settings: settings_lib.Agreement) -> report.Table:
  """Returns how held-out text comes out through the cache."""
  found = load.from_workdir(settings.model)
  tokens_BL = tasks.texts(found.experiment, settings.rows)
  rows, length = tokens_BL.shape
  prompt = length // 2 if settings.prompt is None else settings.prompt
  counted = cached_agreement.compare(
    found.params,
    found.experiment.model,
    tokens_BL,
    prompt=prompt,
    chunk=settings.chunk,
    page=settings.chunk,
    replica=found.replica,
  )
  return report.Table(
    _counts(counted),
    ('compared', 'found'),
    f'{settings.model}: {rows} texts of {length} tokens, {prompt} of them'
    f' in chunks of {settings.chunk}',
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


def compare_answers(settings: settings_lib.Agreement) -> report.Table:
  """Returns how many answers are right through the cache."""
  found = load.from_workdir(settings.model)
  comparison = _Comparison(settings, found)
  for mode in settings.mode:
    decoder = play.decoder(
      found, None, rows=settings.rows, length=comparison.length, mode=mode
    )
    read = cached_answers.reader(decoder, settings.chunk)
    comparison.add(f'through the cache, {mode}', read)
  return comparison.table()


def compare_kernels(settings: settings_lib.Agreement) -> report.Table:
  """Returns how many answers each implementation of attention has right."""
  names = flags.choose('attention', settings.attention, api.RUNS_ON)
  comparison = _Comparison(settings, load.from_workdir(settings.model))
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

  def __init__(self, settings: settings_lib.Agreement, found):
    self._settings, self._found = settings, found
    data = found.experiment.data
    self._task = tasks.questions(data)
    self._cells = needle.grid(self._task, data.length, settings.questions)
    self.length = max(cell.length for cell in self._cells)
    self._right = {}
    self.add('one forward pass', self.forward(found.experiment.model.attention))

  def forward(self, attention: str | None) -> Callable:
    """Returns what answers in one forward pass with this attention."""
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
    self._right[name] = needle.accuracy(
      read, self._task, self._cells, [self._settings.seed]
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
      f'{self._settings.model}: {total:,} questions of up to {self.length}'
      ' tokens',
    )
