"""Figures without the extra that draws them, and tables."""

import sys
from typing import NamedTuple

import pytest

from kaiju_jax.reporting import decision
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from tests import printing


def test_a_figure_without_matplotlib_names_the_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
  monkeypatch.delattr('matplotlib.figure', raising=False)
  for call in (figures.require_figures, lambda: figures.figure(3, 2)):
    with pytest.raises(figures.MissingExtra) as error:
      call()
    assert str(error.value) == (
      "figures need matplotlib: pip install 'kaiju_jax[report]'."
    )


def test_a_figure_is_written_as_a_png(tmp_path):
  page = figures.figure(3, 2)
  axes = page.subplots()
  for index in range(7):
    axes.plot([1, 2], [index, index], **figures.style(index))
  figures.label_ticks(axes.xaxis, [1, 2], [10, 20])
  figures.save(page, tmp_path / 'page.png')
  assert (tmp_path / 'page.png').read_bytes().startswith(b'\x89PNG')
  styles = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
  assert len(set(styles)) == 7 and styles[6][0] == styles[0][0]
  assert [one.get_text() for one in axes.get_xticklabels()] == ['10', '20']


class Row(NamedTuple):
  arm: str
  right_of_all: statistics.Share
  loss: statistics.Estimate | None = None


def test_rows_name_the_columns_and_values_print_themselves():
  rows = [
    Row('int8', statistics.Share(97, 100), statistics.Estimate(1.5, 1.25, 2)),
    Row('bf|16', statistics.Share(0, 0)),
  ]
  table = report.Table(rows, caption='Held out.')
  assert table.markdown().split('\n') == [
    '| arm | right of all | loss |',
    '|---|---|---|',
    '| int8 | 97.0 % (92 … 99) | 1.50 (1.25–2.00) |',
    r'| bf\|16 | — | – |',
    '',
    'Held out.',
  ]
  printed = printing.printed('Losses', table)
  assert 'right of all' in printed and 'bf|16' in printed
  for look in 'boxed', 'light', 'narrow':
    table = report.Table(
      [(1, 2), (3, 4)], ('a', 'b'), look=look, has_total=True
    )
    lines = printing.printed(table).splitlines()
    assert [line for line in lines if '3' in line and '4' in line]


@pytest.mark.parametrize(
  'size, text', [(17, '17 B'), (4096, '4 KiB'), (2**41 * 1.5, '3 TiB')]
)
def test_bytes_print_themselves(size, text):
  assert str(report.Bytes(size)) == text


def page():
  drawn = figures.figure(3, 2)
  drawn.subplots().plot([1, 2], [3, 4])
  found = report.Report('Recall').say('Two arms.').table([('int8', 1)], 'ab')
  found.figure('recall.png', drawn, 'Recall by length')
  return found.decide(
    decision.decide('recall', [decision.refuse_if(True, 'Too low.')], {}, {})
  )


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
  page().write(tmp_path / 'whole')
  assert (tmp_path / 'whole/report.md').read_text() == (
    '# Recall\n\nTwo arms.\n\n| a | b |\n|---|---|\n| int8 | 1 |\n\n'
    '![Recall by length](recall.png)\n\nrecall: refused. Too low.\n'
  )
  assert (tmp_path / 'whole/recall.png').read_bytes().startswith(b'\x89PNG')
  assert decision.load(tmp_path / 'whole/decision.json').status == 'refused'
  monkeypatch.setattr(decision, 'write', lambda *_: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    page().write(tmp_path / 'broken')
  assert [path.name for path in tmp_path.iterdir()] == ['whole']


def test_a_command_ends_in_its_page_and_exits_as_decided(tmp_path, capsys):
  with pytest.raises(SystemExit, match='3'):
    page().conclude(str(tmp_path / 'out'))
  said = capsys.readouterr()
  assert '| int8 | 1 |' in said.out and 'Too low.' in said.err
  assert (tmp_path / 'out/report.md').exists()
  page().show(['a.json'], as_markdown=True)
  said = capsys.readouterr().out
  assert said.startswith('# Recall\n') and said.endswith('Written: a.json\n')
