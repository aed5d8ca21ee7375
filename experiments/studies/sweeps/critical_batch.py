"""Measures the critical batch: branches of one run, then three whole runs.

At several places of a run with a small batch, branches train on equally many
tokens with m times as many microbatches, at √m times the rate that the run had
there, which falls over the whole branch. `fits/critical_batch.py`
says which m cost nothing, and which `optimizer.batch` follows.

That the rate falls is our guess. At a constant rate a small batch loses by the
noise of its steps, which vanishes when the run decays, and so a larger batch
looks better than it is (`experiments/results/schedules.md`).

Then three runs from the beginning on the same tokens: with the small batch,
with that schedule, and as a contrast with the largest batch throughout.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import copy
import math
import os
import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.experiments.studies.sweeps import study as study_lib
from kaiju_jax.experiments.studies.sweeps.fits import critical_batch as fits
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import grid
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir as workdir_lib

ARMS = 'small', 'schedule', 'large'
_NEVER = 10**9  # Steps between checkpoints: one at a run's end suffices.
_NEAR = 0.02  # How far from a wanted fraction a checkpoint may stand.


class Place(NamedTuple):
  """A checkpoint at which branches begin."""

  step: int  # The checkpoint's step.
  fraction: float  # The fraction of the run's tokens that are trained there.
  tokens: int  # The number of these tokens.


class BatchCell(NamedTuple):
  """One branch: its place, how many times the batch, and its seed."""

  place: Place
  multiple: int
  seed: int


class Arm(NamedTuple):
  """One arm of the three runs from the beginning."""

  name: str  # One of ARMS.
  steps: int  # Optimizer steps of the run.
  losses: dict[int, float]  # {seed: held-out loss}.

  def excess(self, small: 'Arm') -> statistics.Difference:
    """Returns the relative loss over `small`, paired by seed."""
    relative = {s: self.losses[s] / small.losses[s] - 1 for s in self.losses}
    return statistics.difference(relative, dict.fromkeys(relative, 0.0))


class BatchStudy(NamedTuple):
  """The results of a study."""

  epsilon: float  # Relative loss that a larger batch may cost.
  found: dict[Place, fits.Critical]  # The critical batch by place.
  batch: str  # The value of `optimizer.batch` that follows.
  # The runs from the beginning, by arm; None where none was run.
  arms: dict[str, Arm] | None


def measure(
  path: pathlib.Path,
  settings: study_lib.CriticalBatch,
  root: pathlib.Path,
) -> BatchStudy:
  """Runs the branches, then the three runs, and returns what they say.

  Args:
    path: workdir of the run with a small batch.
    settings: what is to be measured.
    root: folder of all workdirs; what is complete there is not run again.

  Raises:
    OSError, ValueError, SystemExit: see `grid.run`.
  """
  base = load(path)
  cells = [
    BatchCell(place, multiple, seed)
    for place in places(path, base, settings.at)
    for multiple in settings.multiples
    for seed in settings.seeds
  ]
  runs = branches(path, base, cells, settings.share, root)
  found = critical(grid.losses(runs, settings, root), settings.epsilon)
  batch = schedule(found, base)
  if not settings.confirm or ' ' not in batch:
    return BatchStudy(settings.epsilon, found, batch, None)
  whole = arms(base, batch, settings.seeds, root)
  return BatchStudy(
    settings.epsilon,
    found,
    batch,
    outcome(whole, grid.losses(whole, settings, root)),
  )


def load(path: str | os.PathLike[str]) -> experiment_lib.Experiment:
  """Returns the experiment of the run to branch off.

  Raises:
    OSError, ValueError: there is none, or its batch is not the same throughout.
  """
  base = workdir_lib.load_experiment(path)
  for field, value in (
    ('optimizer.batch', base.optimizer.batch),
    ('loop.branch', base.loop.branch),
  ):
    if value:
      raise ValueError(
        f'{path}: {field}={value!r}: branches need a run of one batch from its'
        " beginning, with ''."
      )
  return base


def places(
  path: pathlib.Path,
  base: experiment_lib.Experiment,
  fractions: Sequence[float],
) -> list[Place]:
  """Returns the checkpoint next to each fraction of the run's tokens.

  Raises:
    ValueError: there is none near; names what there is.
  """
  schedule = batch_schedule.schedule_of(base)
  kept = [
    Place(step, rows / schedule.rows, rows * schedule.length)
    for step in workdir_lib.checkpoints(path)
    for rows in [schedule.row_of(step)]
  ]
  found = []
  for wanted in fractions:
    near = min(
      kept, key=lambda place: abs(place.fraction - wanted), default=None
    )
    if near is None or abs(near.fraction - wanted) > _NEAR:
      held = ', '.join(f'{place.fraction:.3f}' for place in kept) or 'none'
      raise ValueError(
        f'--at={wanted:g}: {path} keeps no checkpoint near that fraction of its'
        f' tokens; there are {held}. Train it with a smaller'
        ' loop.checkpoint_every and a larger loop.checkpoints_kept.'
      )
    if near not in found:
      found.append(near)
  return found


def branches(
  path: pathlib.Path,
  base: experiment_lib.Experiment,
  cells: Sequence[BatchCell],
  share: float,
  root: pathlib.Path,
) -> dict[BatchCell, grid.Job]:
  """Returns the run of each cell, below `root`.

  A branch of `base` trains on the part `share` of that run's tokens.
  """
  total = batch_schedule.schedule_of(base).tokens
  made = {}
  for cell in cells:
    place = cell.place
    one = copy.deepcopy(base)
    one.data.microbatches *= cell.multiple
    one.optimizer.learning_rate = _rate(base, place.tokens) * math.sqrt(
      cell.multiple
    )
    own = math.ceil(share * total)
    one.loop.branch = f'{path}@{place.step}'
    one.loop.tokens = place.tokens + own
    one.optimizer.schedule, one.optimizer.warmup = 'wsd', 0.0
    one.optimizer.decay = own / one.loop.tokens
    one.loop.evaluate_every, one.loop.checkpoint_every = 0, _NEVER
    one.seed = base.seed + cell.seed
    name = f'{place.fraction:.3f}: {cell.multiple} ×'
    folder = (
      root / f'step{place.step}' / f'batch{cell.multiple}' / f'seed{cell.seed}'
    )
    made[cell] = grid.Job(name, one, folder, place.tokens)
  return made


def _rate(base: experiment_lib.Experiment, tokens: int) -> float:
  """Returns the rate that the run had after so many tokens, to four digits."""
  import jax.numpy as jnp

  from kaiju_jax.training import optimizer

  shape = optimizer.shape_of_rate(
    base.optimizer, batch_schedule.schedule_of(base).tokens
  )
  rate = base.optimizer.learning_rate * float(shape(jnp.float32(tokens)))
  if rate <= 0:
    raise ValueError(
      f'after {tokens:,} tokens the rate is 0: branch off elsewhere (--at).'
    )
  return float(f'{rate:.4g}')


def critical(
  losses: Mapping[BatchCell, float], epsilon: float
) -> dict[Place, fits.Critical]:
  """Returns what each place allows."""
  found = {}
  for place in dict.fromkeys(cell.place for cell in losses):
    by_multiple: dict[int, list[float]] = {}
    for cell in sorted(losses):
      if cell.place == place:
        by_multiple.setdefault(cell.multiple, []).append(losses[cell])
    found[place] = fits.critical(by_multiple, epsilon)
  return found


def schedule(
  found: Mapping[Place, fits.Critical],
  base: experiment_lib.Experiment,
) -> str:
  """Returns the `optimizer.batch` that follows."""
  return fits.schedule(
    {float(f'{p.fraction:.3g}'): one.largest for p, one in found.items()},
    base.data.microbatches,
  )


def arms(
  base: experiment_lib.Experiment,
  batch: str,
  seeds: Sequence[int],
  root: pathlib.Path,
) -> dict[tuple[str, int], grid.Job]:
  """Returns the runs from the beginning, {(arm, seed): run}.

  `batch` is the schedule; `seeds` are added to the seed of `base`.
  """
  largest = int(batch.rpartition(':')[2])
  small = base.data.microbatches
  made = {}
  for name in ARMS:
    for seed in seeds:
      one = copy.deepcopy(base)
      one.loop.tokens = batch_schedule.schedule_of(base).tokens
      one.loop.evaluate_every, one.loop.checkpoint_every = 0, _NEVER
      one.seed = base.seed + seed
      if name != 'small':
        one.data.microbatches = largest
        one.optimizer.learning_rate *= math.sqrt(largest / small)
      if name == 'schedule':
        one.optimizer.batch, one.optimizer.batch_rate = batch, 'sqrt'
      # The schedule is part of the name: another one is another run.
      part = '' if name == 'small' else batch.replace(':', '-')
      folder = root / f'{name} {part}'.strip().replace(' ', '_')
      made[name, seed] = grid.Job(name, one, folder / f'seed{seed}')
  return made


def outcome(
  runs: Mapping[tuple[str, int], grid.Job],
  losses: Mapping[tuple[str, int], float],
) -> dict[str, Arm]:
  """Returns how the runs of `arms` did."""
  return {
    name: Arm(
      name,
      next(run.steps for (arm, _), run in runs.items() if arm == name),
      {seed: loss for (arm, seed), loss in losses.items() if arm == name},
    )
    for name in ARMS
  }


# The targets of the run that follows the schedule.
EXCESS, FEWER = 0.003, 0.3
_DIVERGED = 'diverged'

Arms = Mapping[str, Arm]


def parts(study: BatchStudy) -> Iterator[report.Table | str]:
  """Yields what is printed: tables, and sentences."""
  found = study.found
  first = next(iter(found.values()))
  yield report.Table(
    [
      (
        f'{place.fraction:.3f}',
        *(
          _percent(excess, one.half_width[multiple])
          for multiple, excess in one.excess.items()
        ),
        f'{one.largest} ×',
      )
      for place, one in found.items()
    ],
    (
      'share of tokens so far',
      *(f'{multiple} ×' for multiple in first.excess),
      f'largest within {study.epsilon:.2%}',
    ),
    'Relative loss over the small batch',
  )
  for place, one in found.items():
    for doubt in one.doubts:
      yield f'At {place.fraction:.3f}, not sure: {doubt}.'
  yield f'Schedule: --config.optimizer.batch={study.batch!r}'
  if study.arms is None:
    yield 'No runs from the beginning: not asked for, or one batch throughout.'
    return
  yield from _arms(study.arms)


def _arms(arms: Arms) -> Iterator[report.Table | str]:
  small = arms['small']
  rows = []
  for name, arm in arms.items():
    excess = arm.excess(small)
    loss = statistics.mean(list(arm.losses.values()))
    shown = f'{loss:.4f}' if math.isfinite(loss) else _DIVERGED
    over = _percent(excess.mean, excess.half_width)
    over = '' if name == 'small' else over
    rows.append((name, f'{arm.steps:,}', shown, over))
  yield report.Table(
    rows,
    ('arm', 'steps', 'loss', 'over small'),
    'From the beginning, on equal tokens',
  )
  scheduled, large = (
    arms[name].excess(small).mean for name in ('schedule', 'large')
  )
  fewer = 1 - arms['schedule'].steps / small.steps
  loss = report.verdict(f'{EXCESS:.1%}', scheduled <= EXCESS)
  steps = report.verdict(f'{FEWER:.0%}', fewer >= FEWER)
  yield (
    f'With the schedule {_percent(scheduled)} ({loss}) in {fewer:.0%} fewer'
    f' steps ({steps}); the largest batch from the'
    f' beginning {_percent(large)}'
    f' ({"NOT further off" if large <= scheduled else "further off"}).'
  )


def _percent(value: float, half_width: float = math.nan) -> str:
  if not math.isfinite(value):
    return _DIVERGED
  text = f'{value:+.2%}'
  if value and not math.isnan(half_width):
    text += f' ± {half_width:.2%}'
  return text


def plain(study: BatchStudy) -> dict[str, Any]:
  """Returns the result by name, for `report.plain`."""
  return {
    'epsilon': study.epsilon,
    'schedule': study.batch,
    'places': [
      {
        **place._asdict(),
        'largest': one.largest,
        'excess': one.excess,
        'half_width': one.half_width,
        'doubts': one.doubts,
      }
      for place, one in study.found.items()
    ],
    'arms': study.arms
    and {
      name: {'steps': arm.steps, 'losses': arm.losses}
      for name, arm in study.arms.items()
    },
  }


def draw(study: BatchStudy) -> Any:
  """Returns the branches' losses over m, and the arms' over their steps."""
  drawn = figures.figure(9, 4)
  branches, runs = drawn.subplots(1, 2)
  for colour, (place, one) in zip(figures.PALETTE, study.found.items()):
    multiples = list(one.excess)
    branches.errorbar(
      multiples,
      [100 * one.excess[m] for m in multiples],
      [100 * np.nan_to_num(one.half_width[m]) for m in multiples],
      fmt='o-',
      color=colour,
      capsize=3,
      linewidth=1,
      label=f'after {place.fraction:.0%} of the tokens',
    )
  branches.axhline(
    100 * study.epsilon, color=figures.FAINT, linestyle=':', label='ε'
  )
  branches.set_xscale('log', base=2)
  branches.set_xlabel('times the batch, √ times the rate')
  branches.set_ylabel('loss over the small batch (%)')
  branches.legend(frameon=False, fontsize=8)
  for colour, (name, arm) in zip(figures.PALETTE, (study.arms or {}).items()):
    mean = statistics.mean(list(arm.losses.values()))
    runs.plot(arm.steps, mean, 'o', color=colour, label=name)
    runs.plot(
      [arm.steps] * len(arm.losses),
      list(arm.losses.values()),
      '.',
      color=colour,
    )
  runs.set_xlabel('steps, on equal tokens')
  runs.set_ylabel('held-out loss (nats per token)')
  if study.arms:
    runs.legend(frameon=False, fontsize=8)
  return drawn
