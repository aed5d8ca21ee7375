"""Prints and draws the reports of rounds."""

from collections.abc import Mapping
import os
import pathlib
from typing import Any

from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report as report_lib
from kaiju_jax.reporting import statistics

_COUNTS = 'wins', 'ties', 'losses'


def show(found: Mapping[str, Any], out: pathlib.Path) -> None:
  """Prints a run's `report.json`: its rounds, why it stopped, its win rate."""
  columns = (
    *('round', 'choices', 'ties', 'cut'),
    *('KL', 'length', 'accuracy', 'wins'),
  )
  lines = [
    (
      *(one[name] for name in ('round', 'groups', 'ties', 'cut')),
      *(_number(one[name]) for name in ('kl', 'length', 'accuracy')),
      one['win'] and statistics.Estimate.read(one['win']),
    )
    for one in found['rounds']
  ]
  page = report_lib.Report().table(lines, columns)
  if found['stop']:
    page.say(f'Stopped by {found["stop"]}.')
  page.say(f'The last good round is {found["good"]}.')
  if found['win'] is not None:
    counts = found['win']
    page.say(
      f'It wins {statistics.Estimate.read(counts)} against the first model:'
      f' {counts["wins"]} wins, {counts["ties"]} ties, {counts["losses"]}'
      ' losses on held-out prompts.'
    )
  page.show([out / 'report.json', out / 'model'], width=100)


def show_runs(found: Mapping[str, Mapping[str, Any]]) -> None:
  """Prints a line per run: its last good round, against the first model.

  Args:
    found: reports of `rounds.run`, by names.
  """
  lines = []
  for name, one in found.items():
    last = one['rounds'][one['good'] - 1] if one['good'] else None
    wins = one['win']
    rates = [wins, wins['untied']] if wins else [None] * 2
    lines.append(
      (
        name,
        one['good'],
        *(_number(last and last[key]) for key in ('kl', 'length')),
        *(wins and wins[key] for key in _COUNTS),
        *(rate and statistics.Estimate.read(rate) for rate in rates),
      )
    )
  columns = 'run', 'round', 'KL', 'length', *_COUNTS, 'win rate', 'untied'
  report_lib.Report().table(lines, columns).show(width=120)


def draw(
  found: Mapping[str, Mapping[str, Any]], path: str | os.PathLike[str]
) -> None:
  """Draws curves of KL, length, accuracy and wins over rounds.

  Args:
    found: reports of `rounds.run`, by names 'USER, seed N'; runs of one user
      have one colour.
    path: the PNG file.

  Raises:
    report.MissingExtra: matplotlib is not installed.
  """
  users = list(dict.fromkeys(name.rpartition(', seed ')[0] for name in found))
  page = figures.figure(10, 2.8)
  names = (
    ('kl', 'KL, nats per reply'),
    ('length', 'length of replies, × first'),
    ('accuracy', 'held-out choices'),
    ('win', 'wins against the first'),
  )
  for index, (key, label) in enumerate(names):
    axes = page.add_subplot(1, len(names), index + 1)
    known = set()
    for name, one in found.items():
      user = name.rpartition(', seed ')[0]
      values = [
        (x['round'], x[key]['value'] if key == 'win' else x[key])
        for x in one['rounds']
        if x[key] is not None
      ]
      if values:
        label_of = {} if user in known else {'label': user or None}
        known.add(user)
        style = figures.style(users.index(user))
        axes.plot(*zip(*values), **style, **label_of)
    if key == 'win':
      axes.axhline(0.5, color=figures.GREY, linewidth=0.8)
      if len(users) > 1:
        axes.legend(fontsize=6)
    axes.set_title(label, fontsize=9)
    axes.set_xlabel('round')
  figures.save(page, path)


def _number(value: float | None) -> str | None:
  return None if value is None else f'{value:.2f}'
