"""Compares students that begin with different parameters, in one table.

Everything lies in one folder, and no finished step is repeated:

    letters.jsonl, docstrings.jsonl   texts
    WORLD/teacher/                    the teacher's workdir
    WORLD/store/                      its distributions of the text
    WORLD/starts/ARM/                 students before training
                                      (`runs/uptrain.py`)
    WORLD/alignment/                  the workdir whose attention was aligned
    WORLD/ARM/seedS/                  workdirs; readings.json beside each run's
                                      metrics
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import docstrings
from kaiju_jax.data.store import corpora
from kaiju_jax.distillation import config as distillation_config
from kaiju_jax.evaluation import answers
from kaiju_jax.evaluation import held_out
from kaiju_jax.experiments.configs import uptrain as config
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.model import transformer
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import flags
from kaiju_jax.runs import grid
from kaiju_jax.runs import load
from kaiju_jax.runs import teach
from kaiju_jax.runs import uptrain
from kaiju_jax.storage import files
from kaiju_jax.tasks.needle import letters
from kaiju_jax.tasks.needle import questions as needle
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training.records import metrics

_READINGS = 'readings.json'
# A document holds up to eight needles; the answer is one of them.
_DISTRACTORS = 7
_DISTANCES = 12


class Reading(NamedTuple):
  """A model's results on held-out text and questions."""

  loss: float  # Held-out nats per token.
  # Fraction of the questions answered right, at all distances; None where none
  # are asked.
  needle: float | None = None
  # The same beyond the reach of the student's local layers.
  far: float | None = None


def teach_once(teacher: grid.Job, student: grid.Job) -> None:
  """Writes the teacher's distributions of the student's text, or resumes.

  Raises:
    SystemExit: status 130 after an interruption; the same call goes on.
    OSError, ValueError: see `teach.teach`.
  """
  data, wanted = student.experiment.data, student.experiment.objective
  entries = wanted.distillation.entries
  sampling = distillation_config.Sampling(draws=entries, entries=entries)
  plan = teach.plan(
    load.from_workdir(teacher.folder), student.experiment, sampling
  )
  if teach.teach(plan, data.teacher) is None:
    raise SystemExit(130)


def reader(
  experiment: experiment_lib.Experiment, reach: int, count: int = 64
) -> Callable[[Any], Reading]:
  """Returns the function from parameters to a `Reading`.

  Args:
    experiment: gives model and held-out text; questions are as long as its
      rows.
    reach: tokens over which the local layers can carry information; 0 where
      the text is not letters, so that no questions are asked.
    count: questions at each distance.
  """
  data, model = experiment.data, transformer.Transformer(experiment.model)
  _, unseen = corpora.load(data)
  sizes = data.length, data.batch, data.evaluated_rows
  scores = held_out.evaluator(model, {'': unseen}, [1.0], *sizes)
  if not reach:
    return lambda params: Reading(scores(params)['loss'])
  predict = answers.predictor(model)
  task, length = letters.Letters(), data.length
  nearest, farthest = task.distances(length)
  distances = np.unique(
    np.geomspace(nearest, farthest, _DISTANCES).round().astype(int)
  )
  cells = [
    needle.Cell(length, 0.0, distance, _DISTRACTORS, count)
    for distance in distances.tolist()
  ]

  def read(params) -> Reading:
    answer = answers.reader(predict, params, {length})
    found = list(needle.ask(answer, task, cells, (0,)))
    far = [right for cell, right in found if cell.distance > reach]
    return Reading(
      scores(params)['loss'],
      float(np.mean([right for _, right in found])),
      float(np.mean(far)),
    )

  return read


def reading(
  file: pathlib.Path, read: Callable[[Any], Reading], params: Callable[[], Any]
) -> Reading:
  """Returns the reading in `file`; makes the file if it is missing."""
  if not file.exists():
    files.write_json(file, read(params())._asdict())
  return Reading(**files.read_json(file))


def read_run(run: grid.Job, read: Callable[[Any], Reading]) -> Reading:
  """Returns the reading of a trained run."""
  return reading(
    run.folder / _READINGS, read, lambda: load.from_workdir(run.folder).params
  )


def read_start(folder: pathlib.Path, read: Callable[[Any], Reading]) -> Reading:
  """Returns the reading of a student before its training."""
  file = folder.with_name(f'{folder.name}.{_READINGS}')
  return reading(file, read, lambda: load.from_anywhere(folder).params)


def count_tokens_until(
  records: Sequence[Mapping[str, Any]], loss: float, before: int = 0
) -> float | None:
  """Returns the tokens at the first evaluation at `loss` or below, if any.

  Args:
    records: a run's metrics.
    loss: held-out nats per token.
    before: steps before the run's first, which count as well.
  """
  for record in records:
    if record.get('eval_loss', np.inf) <= loss:
      return record['tokens'] * (1 + before / record['step'])
  return None


@dataclasses.dataclass(frozen=True)
class Row:
  """One arm's part of the table."""

  arm: str  # Name of the arm.
  kv_bytes: float  # Bytes of keys and values per token.
  # The reading before training; None for fresh parameters.
  start: Reading | None
  readings: Mapping[int, Reading]  # The readings after training, by seed.
  # {seed: tokens to the baseline's final loss over the baseline's tokens; None
  # where it is not reached}.
  tokens: Mapping[int, float | None]


def row(
  runs: Sequence[grid.Job],
  baseline: Mapping[int, grid.Job],
  start: Reading | None,
  read: Callable[[Any], Reading],
  before: int = 0,
) -> Row:
  """Returns the row of one arm's trained runs.

  Args:
    runs: the arm's runs.
    baseline: the baseline's runs, by seed; {} for none.
    start: the reading before training.
    read: the function from `reader` for the arm's model.
    before: steps that aligned the arm's start, as long as its own.
  """
  model, length = runs[0].experiment.model, runs[0].experiment.data.length
  tokens = {}
  for run in runs if baseline else ():
    seed = run.experiment.seed
    curve = [
      record
      for record in metrics.read(baseline[seed].folder)
      if 'eval_loss' in record
    ]
    reached = count_tokens_until(
      metrics.read(run.folder), curve[-1]['eval_loss'], before
    )
    tokens[seed] = None if reached is None else reached / curve[-1]['tokens']
  return Row(
    runs[0].arm,
    uptrain.kv_bytes(model, length),
    start,
    {run.experiment.seed: read_run(run, read) for run in runs},
    tokens,
  )


def table(rows: Sequence[Row], baseline: str) -> str:
  """Returns all rows as Markdown; losses against the arm `baseline`.

  Differences are paired by seed, with 95 % intervals.
  """
  losses = {
    one.arm: {seed: reading.loss for seed, reading in one.readings.items()}
    for one in rows
  }
  rows_of_cells = []
  for one in rows:
    start = one.start
    rows_of_cells.append(
      (
        one.arm,
        f'{one.kv_bytes:,.0f}',
        '–' if start is None else f'{start.loss:.4f}',
        f'{statistics.mean(list(losses[one.arm].values())):.4f}',
        _against(losses[one.arm], losses[baseline])
        if one.arm != baseline
        else '',
        _share(list(one.tokens.values())),
        '–' if start is None else _percent([start.needle]),
        _percent([reading.needle for reading in one.readings.values()]),
        _percent([reading.far for reading in one.readings.values()]),
      )
    )
  columns = (
    *('arm', 'KV bytes per token', 'held-out loss at 0 tokens'),
    *('after training', f'against {baseline}', 'tokens to its loss'),
    *('needle at 0 tokens', 'after', 'after, far'),
  )
  return report.Table(rows_of_cells, columns).markdown()


def starts_table(readings: Mapping[str, Reading]) -> str:
  """Returns the readings before training as Markdown, the teacher's first."""
  teacher = readings['teacher'].loss
  return report.Table(
    [
      (
        arm,
        f'{one.loss:.4f}',
        f'{one.loss - teacher:+.4f}',
        _percent([one.needle]),
        _percent([one.far]),
      )
      for arm, one in readings.items()
    ],
    ('arm', 'held-out loss', 'above the teacher', 'needle', 'far'),
  ).markdown()


class Tables:
  """Makes the tables; the programs of equal models are compiled once."""

  def __init__(
    self,
    teacher: grid.Job,
    baseline: str,
    window: int,
    before: Mapping[str, int],
  ):
    """Reads nothing yet.

    Args:
      teacher: the trained teacher.
      baseline: the arm that the others are compared with.
      window: of the students' local layers; 0 to ask no questions.
      before: {arm: steps that aligned its start, as long as its own}.
    """
    self._teacher, self._baseline, self._before = teacher, baseline, before
    # Three local layers, each of which looks back window − 1 tokens.
    self._reach = 3 * (window - 1) + 1 if window else 0
    self._readers: dict[str, Callable[[Any], Reading]] = {}

  def tabulate(self, runs: Mapping[str, Sequence[grid.Job]]) -> str:
    """Returns the table, in which the teacher is first.

    Args:
      runs: {arm: its trained runs}, the baseline among them.
    """
    reached = {run.experiment.seed: run for run in runs[self._baseline]}
    rows = []
    for of_arm in [[self._teacher], *runs.values()]:
      read, start = self._reader(of_arm[0]), None
      if begin_with := of_arm[0].experiment.begin_with:
        start = read_start(pathlib.Path(begin_with), read)
      compared = {} if of_arm[0] is self._teacher else reached
      before = self._before.get(of_arm[0].arm, 0)
      rows.append(row(of_arm, compared, start, read, before))
    return table(rows, self._baseline)

  def tabulate_starts(self, runs: Mapping[str, Sequence[grid.Job]]) -> str:
    """Returns the table of what was lost before any training."""
    teacher = self._teacher
    found = {'teacher': read_run(teacher, self._reader(teacher))}
    for arm, of_arm in runs.items():
      begin_with = of_arm[0].experiment.begin_with
      # A distilled student begins as the fitted one does.
      if begin_with and arm not in ('distilled', 'phased'):
        read = self._reader(of_arm[0])
        found[arm] = read_start(pathlib.Path(begin_with), read)
    return starts_table(found)

  def _reader(self, run: grid.Job) -> Callable[[Any], Reading]:
    model = repr(run.experiment.model)
    if model not in self._readers:
      self._readers[model] = reader(run.experiment, self._reach)
    return self._readers[model]


def _against(of_seed, baseline) -> str:
  d = statistics.difference(of_seed, baseline)
  middle, half = 100 * d.mean / d.baseline, 100 * d.half_width / d.baseline
  if not math.isfinite(half):  # One seed says nothing about the others.
    return f'{middle:+.2f} %'
  return f'{middle:+.2f} % ({middle - half:+.2f} … {middle + half:+.2f})'


def _share(values: Sequence[float | None]) -> str:
  if not values:
    return ''
  if None in values:
    return f'not reached in {values.count(None)} of {len(values)}'
  worst = f' (worst {max(values):.2f})' if len(values) > 1 else ''
  return f'{statistics.mean(values):.2f}×{worst}'


def _percent(values: Sequence[float | None]) -> str:
  if None in values:
    return '–'
  return f'{100 * statistics.mean(values):.1f} %'


def compare(settings: settings_lib.UptrainStudy, root: pathlib.Path) -> None:
  """Trains teacher and students, and writes and prints how they do.

  What is there is not repeated.

  Args:
    settings: which students.
    root: the folder of all runs.

  Raises:
    OSError, ValueError: something cannot be read or written; or an unknown
      world or arm.
  """
  world, seeds = settings.world, settings.seeds
  if world not in config.STUDENTS:
    raise ValueError(
      f'--world={world}: must be one of {", ".join(config.STUDENTS)}.'
    )
  arms = flags.choose('arms', settings.arms, config.STUDENTS[world])
  arms = list(dict.fromkeys((config.BASELINE, *arms)))
  if not (root / config.LETTERS).exists():
    letters.write(root / config.LETTERS, config.DOCUMENTS, config.LENGTH)
  if not (root / config.PROSE).exists():
    clean, _ = docstrings.read()
    files.write_json_lines(
      root / config.PROSE, ({'text': text} for text in clean)
    )
  before = dict.fromkeys(config.ALIGNED, config.ALIGNED_STEPS)

  def run(arm: str, folder: pathlib.Path, steps: int | None, seed: int = 0):
    experiment = config.get_config(f'{world}_{arm}', str(root))
    if arm != config.ALIGNMENT:
      experiment.seed = seed
    if steps:
      experiment.loop.steps = steps - before.get(arm, 0)
    return grid.Job(arm, experiment, folder)

  place = root / world
  teacher = run('teacher', place / 'teacher', settings.teacher_steps)
  grid.run([teacher])
  runs = {
    arm: [run(arm, place / arm / f'seed{s}', settings.steps, s) for s in seeds]
    for arm in arms
  }
  for arm in arms:
    wanted, kind = config.STUDENTS[world][arm]
    shared = arm in config.DISTILLED + config.ALIGNED
    start = place / 'starts' / (kind if shared else arm)
    if kind and not start.exists():
      text = teacher.experiment.data.path
      uptrain.write(
        teacher.folder, start, wanted, uptrain.FirstWeights(kind, text=text)
      )
  if set(arms) & set(config.ALIGNED):
    grid.run([run(config.ALIGNMENT, place / config.ALIGNMENT, None)])
  reads_letters = teacher.experiment.data.path.endswith(config.LETTERS)
  tables = Tables(
    teacher, config.BASELINE, config.WINDOW if reads_letters else 0, before
  )
  starts = tables.tabulate_starts(runs)
  (place / 'starts.md').write_text(f'{starts}\n')
  print(starts, flush=True)
  if not settings.train:
    return
  for arm in arms:
    if runs[arm][0].experiment.data.teacher:
      teach_once(teacher, runs[arm][0])
  for count in range(1, len(seeds) + 1):
    grid.run([of_arm[count - 1] for of_arm in runs.values()])
    page = tables.tabulate({arm: own[:count] for arm, own in runs.items()})
    (place / 'report.md').write_text(f'{page}\n')
    print(page, flush=True)
