"""Figures without the extra that draws them, tables, and pages as files."""

import html.parser
import json
import math
import re
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


class Page(html.parser.HTMLParser):
  """Elements, their attributes, and text; refuses tags that do not nest."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.text, self.open = [], '', []
    self.feed(text)
    self.close()
    assert not self.open

  def handle_starttag(self, tag, attributes):
    self.tags.append((tag, dict(attributes)))
    if tag not in ('meta', 'br', 'hr'):
      self.open.append(tag)

  def handle_startendtag(self, tag, attributes):
    self.tags.append((tag, dict(attributes)))

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    self.text += data


HOSTILE = [
  '<script>alert(1)</script>',
  '"><img src=https://example.org/a.png>',
  '![a](https://example.org/a.png)',
  '[a](javascript:alert(1))',
  '</title></table></svg><b onload=x>',
  '<https://example.org>',
  '[a]: https://example.org',
]


@pytest.mark.parametrize('name', HOSTILE)
def test_a_name_becomes_text_and_loads_nothing(name, tmp_path):
  drawn = figures.figure(3, 2)
  drawn.subplots().plot([1, 2], [3, 4], label=name)
  drawn.legend()
  found = report.Report(name).say(name).table([(name, 1)], ('arm', name))
  found.figure('a b.png', drawn, name).save(tmp_path)
  text = (tmp_path / report.HTML).read_text()
  parsed = Page(text)
  tags = {tag for tag, _ in parsed.tags}
  assert {'svg', 'td', 'figcaption', 'style'} <= tags
  assert not tags & {'script', 'img', 'a', 'b', 'link', 'iframe', 'image'}
  for _, attributes in parsed.tags:
    for key, value in attributes.items():
      assert key != 'src' and not key.startswith('on')
      assert 'href' not in key or value.startswith('#')
      assert key == 'content' or 'http' not in value
  assert not re.search(r'url\((?!#)|@import', text)
  # In title, cell, legend and caption, whatever Markdown makes of the rest.
  assert parsed.text.count(name.split('(')[0].strip('![]<>"/')) >= 4
  ids = [one['id'] for _, one in parsed.tags if 'id' in one]
  links = re.findall(r'(?:href="|url\()#([^")]*)', text)
  assert links and set(links) <= set(ids)


def test_two_figures_of_a_page_share_no_ids_and_are_the_same_each_time():
  found = []
  for name in ('a.png', 'a.png', 'b.png'):
    drawn = figures.figure(3, 2)
    drawn.subplots().plot([1, 2], [3, 4], marker='o')
    found.append(figures.draw_svg(drawn, name))
  first, again, other = found
  assert first == again
  ids = [set(re.findall(r'\sid="([^"]*)"', one)) for one in (first, other)]
  assert ids[0] and not ids[0] & ids[1]


def test_a_page_as_json_has_numbers(tmp_path):
  share, loss = statistics.Share(97, 100), statistics.Estimate(1.5, 1.25, 2)
  found = page().table([Row('int8', share, loss), Row('bf16', share)])
  found.table([(math.nan, statistics.difference({0: 2}, {0: 1}))], 'ab')
  found.data['seeds'] = (0, 1)
  found.save(tmp_path)
  told = json.loads((tmp_path / report.JSON).read_text())
  assert (told['title'], told['data']) == ('Recall', {'seeds': [0, 1]})
  assert told['decision']['status'] == 'refused'
  kinds = ['text', 'text', 'columns', 'figure', 'columns', 'columns']
  assert all(kind in part for kind, part in zip(kinds, told['parts']))
  assert told['parts'][3]['figure'] == 'recall.png'
  first, second = told['parts'][4]['rows']
  assert first[:2] == ['int8', {'hits': 97, 'count': 100}]
  assert first[2]['high'] == 2 and second[2] is None
  [[nothing, d]] = told['parts'][5]['rows']
  assert nothing is None and d['mean'] == 1 and d['error'] is None
