"""Reports after how many tokens runs have learnt something.

A run has learnt once a reading of its evaluations reaches a threshold and stays
there: a loss, or another reading that falls, from above.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import math
import os
import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.runs import flags
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir
from kaiju_jax.training.records import metrics

# Parts of the names of readings that are the better, the lower they are.
_FALLING = 'loss', 'bits', 'perplexity', 'error'


class LearningRun(NamedTuple):
  """One arm (a variant of the experiment) on one seed, so far."""

  arm: str  # Name of the arm and of its folder.
  experiment: experiment_lib.Experiment
  records: Sequence[Mapping[str, Any]]

  def readings(self, name: str) -> list[tuple[float, float]]:
    """Returns (tokens, value) of every record that has the reading."""
    return [(r['tokens'], r[name]) for r in self.records if name in r]


def runs(root: str | os.PathLike[str]) -> list[LearningRun]:
  """Returns the runs of a folder, ROOT/ARM/seedS, sorted by arm.

  Raises:
    ValueError: there is none, or a workdir cannot be read.
  """
  folders = sorted(
    path.parent for path in pathlib.Path(root).glob(f'*/seed*/{metrics.FILE}')
  )
  if not folders:
    raise ValueError(
      f'root={os.fspath(root)!r}: has no runs, ROOT/ARM/seedS/{metrics.FILE};'
      ' experiments.ablate and experiments.needle write such folders.'
    )
  return [
    LearningRun(
      folder.parent.name,
      workdir.load_experiment(folder),
      metrics.read(folder),
    )
    for folder in folders
  ]


def falls(name: str) -> bool:
  """Returns whether a reading is the better, the lower it is."""
  return any(word in name for word in _FALLING)


def uniform(run: LearningRun, name: str) -> float:
  """Returns a falling reading of uniform guesses; infinity if it is unknown."""
  entries = run.experiment.model.vocab_size
  if name.partition('/')[0] in ('eval_loss', 'eval_language_loss'):
    return math.log(entries)
  if (
    name.startswith('eval_bits_per_byte') and not run.experiment.data.tokenizer
  ):
    return math.log2(entries)
  return math.inf


def tokens_to(run: LearningRun, name: str, threshold: float) -> float | None:
  """Returns after how many tokens a reading reaches a threshold for good.

  Args:
    name: the reading's name in metrics.jsonl.
    threshold: the value that counts as learnt.

  Returns:
    Tokens at the first evaluation from which on no reading is worse; None if
    the last one is worse, or there is none.
  """
  learnt = None
  for tokens, value in run.readings(name):
    is_good = value <= threshold if falls(name) else value >= threshold
    if not is_good:
      learnt = None
    elif learnt is None:
      learnt = tokens
  return learnt


def table(
  runs: Sequence[LearningRun], name: str, threshold: float
) -> report.Table:
  """Returns a row per arm: tokens to the threshold, and the last readings."""
  rows = []
  for arm in dict.fromkeys(run.arm for run in runs):
    ours = [run for run in runs if run.arm == arm]
    reached = [tokens_to(run, name, threshold) for run in ours]
    lasts = [(run.readings(name) or [(0, float('nan'))])[-1] for run in ours]
    model = ours[0].experiment.model
    quantization = model.quantization
    rows.append(
      (
        arm,
        layers_lib.draw(model.layers()),
        ' '.join((quantization.matmul, quantization.kv, quantization.qk)),
        f'{sum(one is not None for one in reached)} of {len(ours)}',
        ' '.join('–' if one is None else _thousands(one) for one in reached),
        ' '.join(f'{value:.3f}' for _, value in lasts),
        ' '.join(_thousands(tokens) for tokens, _ in lasts),
      )
    )
  columns = (
    *('arm', 'layout', 'matmul, KV, QK', 'learnt'),
    *('tokens to it, thousands', 'last reading', 'tokens, thousands'),
  )
  side = 'below' if falls(name) else 'above'
  title = f'{name} of {threshold:g} and {side}'
  return report.Table(rows, columns, title, left=len(columns))


def _thousands(tokens: float) -> str:
  return f'{tokens / 1000:,.0f}'


def draw(runs: Sequence[LearningRun], name: str, threshold: float) -> Any:
  """Returns the reading over tokens: a line per run, a style per arm."""
  page = figures.figure(9, 5)
  axes = page.add_subplot()
  for index, arm in enumerate(dict.fromkeys(run.arm for run in runs)):
    label = arm
    for run in runs:
      if run.arm == arm and (points := run.readings(name)):
        tokens, values = zip(*points)
        millions = [one / 1e6 for one in tokens]
        style = figures.style(index)
        axes.plot(millions, values, **style, linewidth=1.3, label=label)
        label = None
  axes.axhline(threshold, color=figures.FAINT, linewidth=0.8, linestyle=':')
  axes.set_xlabel('tokens, millions')
  axes.set_ylabel(name)
  axes.grid(alpha=0.3)
  page.legend(loc='outside right upper')
  return page


def show(settings: settings_lib.Ablate) -> None:
  """Draws and prints after how many tokens each arm has learnt its task.

  Raises:
    OSError, ValueError: something cannot be read or written, or is wrong.
  """
  figures.require_figures()
  name = settings.reading
  found = runs(settings.out)
  arms = flags.choose('arms', settings.arms, (run.arm for run in found))
  found = [run for run in found if run.arm in arms]
  found.sort(key=lambda run: arms.index(run.arm))
  if not any(run.readings(name) for run in found):
    readings = sorted(
      {key for run in found for r in run.records for key in r if 'eval_' in key}
    )
    raise ValueError(
      f'--reading={name!r}: no run has it; there are'
      f' {", ".join(readings) or "none: the runs did not evaluate"}.'
    )
  threshold = _threshold(settings, found)
  page = pathlib.Path(settings.out) / f'learning.{name}.png'
  figures.save(draw(found, name, threshold), page)
  report.Report().add(table(found, name, threshold)).show([page])


def _threshold(
  settings: settings_lib.Ablate, runs: Sequence[LearningRun]
) -> float:
  """Returns the value that counts as learnt.

  Raises:
    ValueError: a reading that falls has no --most, or not one below that of
      uniform guesses.
  """
  name = settings.reading
  if not falls(name):
    if settings.most is not None:
      raise ValueError(
        f'--most={settings.most}: is for readings that fall; {name} rises: give'
        ' --least.'
      )
    return 0.95 if settings.least is None else settings.least
  guessed = min(uniform(run, name) for run in runs)
  if settings.most is None or not settings.most < guessed:
    known = '' if guessed == math.inf else f', below {guessed:.3f}'
    raise ValueError(
      f'--most={settings.most}: {name} falls while a run learns: give the value'
      f' that counts as learnt{known}{known and ", that of uniform guesses"}.'
    )
  if settings.least is not None:
    raise ValueError(
      f'--least={settings.least}: is for readings that rise; {name} falls: give'
      ' --most alone.'
    )
  return settings.most
