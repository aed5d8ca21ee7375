"""Shows after how many tokens the runs of a folder have learnt their task."""

import math
import pathlib

from kaiju_jax.experiments.studies import learning
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.runs import flags


def show(settings: settings_lib.Ablate) -> None:
  """Draws and prints after how many tokens each arm has learnt its task.

  Raises:
    OSError, ValueError: something cannot be read or written, or is wrong.
  """
  figures.require_figures()
  name = settings.reading
  runs = learning.runs(settings.out)
  arms = flags.choose('arms', settings.arms, (run.arm for run in runs))
  runs = [run for run in runs if run.arm in arms]
  runs.sort(key=lambda run: arms.index(run.arm))
  if not any(run.readings(name) for run in runs):
    readings = sorted(
      {key for run in runs for r in run.records for key in r if 'eval_' in key}
    )
    raise ValueError(
      f'--reading={name!r}: no run has it; there are'
      f' {", ".join(readings) or "none: the runs did not evaluate"}.'
    )
  threshold = _threshold(settings, runs)
  page = pathlib.Path(settings.out) / f'learning.{name}.png'
  drawn = figures.figure(9, 5)
  learning.draw(drawn, runs, name, threshold, figures.style)
  figures.save(drawn, page)
  report.Report().add(learning.table(runs, name, threshold)).show([page])


def _threshold(settings: settings_lib.Ablate, runs) -> float:
  """Returns the value that counts as learnt.

  Raises:
    ValueError: a reading that falls has no --most, or not one below that of
      uniform guesses.
  """
  name = settings.reading
  if not learning.falls(name):
    if settings.most is not None:
      raise ValueError(
        f'--most={settings.most}: is for readings that fall; {name} rises: give'
        ' --least.'
      )
    return 0.95 if settings.least is None else settings.least
  uniform = min(learning.uniform(run, name) for run in runs)
  if settings.most is None or not settings.most < uniform:
    known = '' if uniform == math.inf else f', below {uniform:.3f}'
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
