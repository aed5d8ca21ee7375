"""The rounds' readings as a table and as curves."""

from collections.abc import Mapping
import os
import pathlib
from typing import Any

from kaiju_jax.runs import report as report_lib


def show(found: Mapping[str, Any], out: pathlib.Path) -> None:
  """Prints a line per round, why it stopped, and the win rate.

  Args:
    found: the report of `rounds.run`.
    out: the folder of the rounds.
  """
  columns = (
    'round',
    'choices',
    'ties',
    'cut',
    'KL',
    'length',
    'accuracy',
    'wins',
  )
  lines = [
    (
      one['round'],
      one['groups'],
      one['ties'],
      one['cut'],
      _number(one['kl']),
      _number(one['length']),
      _number(one['accuracy']),
      '–' if one['win'] is None else report_lib.interval(one['win']),
    )
    for one in found['rounds']
  ]
  parts: list[Any] = [report_lib.table(columns, lines)]
  if found['stop']:
    parts.append(f'Stopped by {found["stop"]}.')
  parts.append(f'The last good round is {found["good"]}.')
  if found['win'] is not None:
    counts = found['win']
    parts.append(
      f'It wins {report_lib.interval(counts)} against the first model:'
      f' {counts["wins"]} wins, {counts["ties"]} ties, {counts["losses"]}'
      ' losses on held-out prompts.'
    )
  report_lib.show(parts, [out / 'report.json', out / 'model'], width=100)


def draw(found: Mapping[str, Any], path: str | os.PathLike) -> None:
  """Draws curves of KL, length, accuracy and wins over rounds.

  Raises:
    report.MissingExtra: matplotlib is not installed.
  """
  page = report_lib.figure(9, 2.6)
  names = (
    ('kl', 'KL, nats per reply'),
    ('length', 'length of replies, × first'),
    ('accuracy', 'held-out choices'),
    ('win', 'wins against the first'),
  )
  for index, (name, label) in enumerate(names):
    axes = page.add_subplot(1, len(names), index + 1)
    values = [
      (one['round'], one[name]['value'] if name == 'win' else one[name])
      for one in found['rounds']
      if one[name] is not None
    ]
    if values:
      axes.plot(*zip(*values), **report_lib.style(index))
    axes.axvline(found['good'], color=report_lib.GREY, linewidth=0.8)
    axes.set_title(label, fontsize=9)
    axes.set_xlabel('round')
  report_lib.save(page, path)


def _number(value: float | None) -> str:
  return '–' if value is None else f'{value:.2f}'
