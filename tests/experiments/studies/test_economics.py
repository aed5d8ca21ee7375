"""The tables of the economics commands: labels, flags, JSON, and no jax."""

import json

import pytest

from kaiju_jax.experiments.studies import economics
from kaiju_jax.fleet import book as book_lib
from tests.experiments import forked


@pytest.mark.parametrize('name', book_lib.NAMES)
def test_every_input_is_shown_with_a_label(name):
  part = economics.show_book(book_lib.load(name), book_lib.load('ours'))
  for row in part.rows:
    assert row[2] in book_lib.LABELS and row[-1] in book_lib.LABELS and row[3]
  rates = [row for row in part.rows if row[0].endswith('_rate')]
  assert {row[-1] for row in rates} == {
    'recomputed',
    'measured here',
    'ceiling',
  }


def test_flags_stand_in_the_table_as_computed():
  cells, verdicts = economics.show_claims(book_lib.load('source'))
  flags = {row[1]: row[-1] for row in cells.rows}
  assert flags['token_rate'] == '' and flags['rewarm'] == '× 60'
  assert [row[2] for row in verdicts.rows][:2] == ['holds', '4 of 4']
  fixed = book_lib.load('source', ['rewarm=2'])
  cells, verdicts = economics.show_claims(fixed)
  assert {row[1]: row[-1] for row in cells.rows}['rewarm'] == ''
  assert dict((row[0], row[2]) for row in verdicts.rows)['V10'] == 'holds'
  assert [row[3] for row in cells.rows if row[1] == 'rewarm'] == ['guess']


def test_a_figure_of_the_tornado_is_written(tmp_path):
  book = book_lib.load('ours')
  bars = book_lib.tornado(book)
  economics.draw_tornado(bars, book, tmp_path / 'tornado.png')
  assert (tmp_path / 'tornado.png').read_bytes()[1:4] == b'PNG'


def test_the_commands_run_without_jax(tmp_path):
  path = tmp_path / 'found.json'
  commands = [
    ['experiments.economics', '--tornado', '--markdown', f'--json={path}'],
    ['experiments.economics', '--book=post_2024'],
    ['experiments.economics', '--book=ours', '--detect=20m'],
  ]
  found = forked.run(commands)
  for one in found:
    assert one.returncode == 0, one.stderr
    assert not one.jax
  assert '| V10 |' in found[0].stdout and '**Tornado**' in found[0].stdout
  assert '20 min' in found[2].stdout
  kept = json.loads(path.read_text())
  assert kept['cells']['rewarm']['label'] == 'quoted'
  assert kept['Verdicts'][0]['flagged'] == 'holds'
