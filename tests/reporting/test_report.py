"""Figures without the extra that draws them, and tables."""

import io
import sys

import pytest
import rich.console

from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report


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


def test_one_table_for_the_terminal_and_for_markdown():
  columns, rows = ('arm', 'loss'), [('int8', 1.5), ('bf16', 2)]
  assert list(report.markdown(columns, rows)) == [
    '| arm | loss |',
    '|---|---|',
    '| int8 | 1.5 |',
    '| bf16 | 2 |',
  ]
  console = rich.console.Console(file=io.StringIO(), width=40)
  console.print(report.table(columns, rows, 'Losses'))
  printed = console.file.getvalue()
  assert 'Losses' in printed and 'int8' in printed and '1.5' in printed
