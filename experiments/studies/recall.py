"""Asks trained arms, or a served model, what they recall, and reports it.

A number of steps (hops) counts only where full attention of equal depth, on the
same seeds, has 95 % of the questions right. Otherwise the task, and not the
layout, may be what fails, and nothing was evaluated.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import os
import pathlib
from typing import Any

import numpy as np

from kaiju_jax.experiments.configs import recall as config
from kaiju_jax.experiments.studies import arms
from kaiju_jax.experiments.studies import needle_figure
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.model import layers
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import figures as figures_lib
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import flags
from kaiju_jax.runs import grid
from kaiju_jax.storage import folders
from kaiju_jax.tasks.recall import asking as recall
from kaiju_jax.tasks.recall import problems
from kaiju_jax.tasks.recall import rows

_ROWS = 16


def ask_served(settings: settings_lib.Recall) -> None:
  """Asks a model or a server; prints, writes and ends with the decision."""
  if settings.out:
    folders.refuse_existing(settings.out)
  kinds = flags.choose('kinds', settings.kinds, problems.KINDS)
  lengths = settings.lengths
  seed = settings.evaluation_seed
  questions = recall.draw(kinds, lengths, settings.questions, seed)
  responder, name, digest = settings.responder.open(_ROWS, chats=False)
  answered = recall.ask(responder, questions)
  records = recall.count_right(answered, name, seed)
  decision = decision_lib.decide(
    recall.NAME,
    list(recall.served_checks(records, settings.least)),
    report.plain({'records': [one._asdict() for one in records]}),
    {'responder': digest, 'questions': f'seed {seed}'},
  )
  page(records, {}, 0).decide(decision).conclude(settings.out)


def ask_trained(settings: settings_lib.Recall) -> None:
  """Trains and asks the arms; what is finished is not repeated."""
  if settings.report:
    figures_lib.require_figures()
  out = pathlib.Path('runs/recall')
  if settings.out is not None:
    out = flags.folder('out', settings.out)
  jobs = grid.cross(
    config.get_config,
    flags.choose('arms', settings.arms, config.ARMS),
    settings.seeds,
    out,
  )
  questions = arms.RecallQuestions(settings.questions, settings.evaluation_seed)
  questions.run(jobs, settings, out)
  if settings.report and not settings.dry_run:
    found = publish(questions.read(jobs), jobs, out)
    print(found.markdown())
    decision_lib.finish(found.decision)


FULL = 'full'
LEAST = 0.95
FOLLOWS, LOSES = 'follows', 'does not follow'


def list_hops(records: Sequence[rows.Record]) -> list[str]:
  """Returns the kinds of one step and more that were asked."""
  asked = {one.kind for one in records if problems.hops_of(one.kind)}
  return sorted(asked, key=problems.hops_of)


def seed_shares(
  records: Sequence[rows.Record], arm: str, kind: str, length: int
) -> dict[int, float]:
  """Returns the share of right questions by seed."""
  return {
    one.seed: one.right / one.count
    for one in records
    if (one.arm, one.kind, one.length) == (arm, kind, length)
  }


def hop_statuses(
  records: Sequence[rows.Record], length: int
) -> dict[tuple[str, str], str]:
  """Returns by (arm, kind): `FOLLOWS`, `LOSES` or 'not evaluated'.

  Args:
    records: the records of all arms.
    length: the trained length, in tokens.
  """
  found = {}
  for arm in list_arms(records):
    for kind in list_hops(records):
      own = seed_shares(records, arm, kind, length)
      full = seed_shares(records, FULL, kind, length)
      counts = own and own.keys() <= full.keys()
      if not counts or min(full[seed] for seed in own) < LEAST:
        found[arm, kind] = decision_lib.NOT_EVALUATED
      else:
        found[arm, kind] = FOLLOWS if min(own.values()) >= LEAST else LOSES
  return found


def hop_checks(
  records: Sequence[rows.Record], length: int
) -> Iterator[decision_lib.Check]:
  """Yields a check per number of steps: it was evaluated on every arm."""
  statuses = hop_statuses(records, length)
  for kind in list_hops(records):
    missing = [
      arm
      for arm in list_arms(records)
      if statuses[arm, kind] == decision_lib.NOT_EVALUATED
    ]
    if not missing:
      yield decision_lib.Check(decision_lib.PASSED)
      continue
    shares = seed_shares(records, FULL, kind, length).values()
    said = ', '.join(f'{share:.1%}' for share in shares) or 'no answers'
    yield decision_lib.Check(
      decision_lib.NOT_EVALUATED,
      f'{kind}: full attention of equal depth has {said} on its seeds; at least'
      f' {LEAST:.0%} are needed on the seeds of {", ".join(missing)}.',
    )


def list_arms(records: Sequence[rows.Record]) -> list[str]:
  """Returns the arms' names, in the records' order."""
  return list(dict.fromkeys(one.arm for one in records))


def figures(
  records: Sequence[rows.Record],
  layouts: Mapping[str, str],
  length: int,
) -> dict[str, Any]:
  """Returns the records, and how many steps each arm follows.

  Args:
    records: the records of all arms.
    layouts: by arm, as `layers.draw`.
    length: the trained length, in tokens.
  """
  statuses = hop_statuses(records, length)
  return {
    'records': [one._asdict() for one in records],
    'arms': {
      arm: {
        'layout': layout,
        'global_layers': count_global(layout),
        'hops': {
          kind: statuses[arm, kind]
          for kind in list_hops(records)
          if (arm, kind) in statuses
        },
      }
      for arm, layout in layouts.items()
    },
    'length': length,
  }


def publish(
  records: Sequence[rows.Record],
  runs: Sequence[grid.Job],
  folder: pathlib.Path,
) -> report.Report:
  """Writes recall.png, report.md and decision.json; returns the report.

  Args:
    records: the records of all runs.
    runs: the runs, whose rows are equally long.
    folder: where the files go.

  Raises:
    MissingExtra: matplotlib is not installed.
  """
  length = runs[0].experiment.data.length
  layouts = {
    run.arm: layers.draw(run.experiment.model.layers()) for run in runs
  }
  decision = decision_lib.decide(
    recall.NAME,
    list(hop_checks(records, length)),
    figures(records, layouts, length),
    {run.name: decision_lib.digest(run.folder / 'config.json') for run in runs},
  )
  draw(records, layouts, length, folder / 'recall.png')
  found = page(records, layouts, length).decide(decision)
  found.save(folder)
  return found


def count_global(layout: str) -> int:
  """Returns the number of global layers of a drawn layout."""
  return sum(not word.startswith('L') for word in layout.split())


def page(
  records: Sequence[rows.Record], layouts: Mapping[str, str], length: int
) -> report.Report:
  """Returns the page of records; see `figures`.

  The table of steps is left out without layouts.
  """
  found, kinds = report.Report(), list_hops(records)
  if kinds and layouts:
    statuses = hop_statuses(records, length)
    found.say(f'# Steps that an arm follows, at {length} tokens')
    steps = [
      (
        arm,
        layout,
        count_global(layout),
        *(
          f'{_quote(records, arm, kind, length)}: {statuses[arm, kind]}'
          for kind in kinds
        ),
      )
      for arm, layout in layouts.items()
    ]
    found.table(steps, ('arm', 'layers', 'global', *kinds))
    found.say(
      'Questions right, in %, with 95 % intervals over questions; behind the'
      ' semicolon, the worst seed. An arm follows so many steps if it has'
      f' {100 * LEAST:.0f} % on each seed. Guesses among a row’s values are'
      f' right in {100 / problems.CHAINS:.0f} %.'
    )
  arms = list_arms(records)
  columns = sorted({(one.kind, one.length) for one in records}, key=_order)
  cells = [
    (*column, *(_quote(records, arm, *column) for arm in arms))
    for column in columns
  ]
  return found.say('# All kinds').table(cells, ('kind', 'length', *arms))


def _order(column: tuple[str, int]) -> tuple[int, int]:
  return list(problems.KINDS).index(column[0]), column[1]


def _quote(records, arm: str, kind: str, length: int) -> str:
  """Returns 'percent (interval); worst seed' of a cell; '–' of nothing."""
  own = [
    one
    for one in records
    if (one.arm, one.kind, one.length) == (arm, kind, length)
  ]
  if not own:
    return '–'
  right, count = sum(x.right for x in own), sum(x.count for x in own)
  low, high = statistics.wilson(right, count)
  said = f'{100 * right / count:.1f} ({100 * low:.1f}–{100 * high:.1f})'
  if len(own) > 1:
    said += f'; {100 * min(x.right / x.count for x in own):.1f}'
  return said


def draw(
  records: Sequence[rows.Record],
  layouts: Mapping[str, str],
  length: int,
  path: str | os.PathLike[str],
) -> None:
  """Writes the figure: heatmaps of kind × length, and hops by global layers.

  Raises:
    MissingExtra: matplotlib is not installed.
  """
  arms, kinds = list_arms(records), list_hops(records)
  page = figures_lib.figure(2.6 * max(3, len(arms)) + 1, 8 if kinds else 4.5)
  above, below = page, None
  if kinds:
    above, below = page.subfigures(2, 1, height_ratios=(1.3, 1))
  panels = above.subplots(1, len(arms), sharey=True, squeeze=False)[0]
  names = [x for x in problems.KINDS if any(x == y.kind for y in records)]
  lengths = sorted({one.length for one in records})
  for axes, arm in zip(panels, arms):
    cells = np.full((len(names), len(lengths)), np.nan)
    for (row, column), _ in np.ndenumerate(cells):
      shares = seed_shares(records, arm, names[row], lengths[column])
      if shares:
        cells[row, column] = 100 * np.mean(list(shares.values()))
    labels = [needle_figure.name_length(one, length) for one in lengths]
    figures_lib.draw_cells(axes, cells, labels, names)
    axes.set_title(arm, fontweight='bold', color=figures_lib.INK)
    axes.set_xlabel('length of the row (tokens)')
  figures_lib.draw_colour_bar(above, panels)
  if kinds:
    _draw_hops(below.subplots(), records, layouts, length)
  figures_lib.save(page, path)


def _draw_hops(axes: Any, records, layouts, length: int) -> None:
  """Draws each number of steps by the number of global layers."""
  statuses = hop_statuses(records, length)
  arms = sorted(layouts, key=lambda arm: count_global(layouts[arm]))
  for number, kind in enumerate(list_hops(records)):
    points = [
      (count_global(layouts[arm]), 100 * share)
      for arm in arms
      for share in seed_shares(records, arm, kind, length).values()
      if statuses[arm, kind] != decision_lib.NOT_EVALUATED
    ]
    if not points:
      continue
    x, y = zip(*points)
    globals_ = sorted(set(x))
    means = [np.mean([b for a, b in points if a == one]) for one in globals_]
    axes.plot(globals_, means, label=kind, **figures_lib.style(number))
    axes.scatter(x, y, color=figures_lib.style(number)['color'], s=12)
  axes.axhline(100 / problems.CHAINS, color=figures_lib.FAINT, lw=0.8, ls=':')
  counts = sorted({count_global(layout) for layout in layouts.values()})
  figures_lib.label_ticks(axes.xaxis, counts, counts)
  axes.set_ylim(0, 104)
  axes.set_xlabel('global layers')
  axes.set_ylabel('questions right (%)')
  axes.spines[['top', 'right']].set_visible(False)
  if axes.get_legend_handles_labels()[0]:
    axes.legend(frameon=False)
