"""From labelled texts to a gate: read, split, trained, written up."""

import dataclasses

import numpy as np
import pytest

from kaiju_jax.classifiers import disguise
from kaiju_jax.classifiers import planted
from kaiju_jax.classifiers import rows as rows_lib
from kaiju_jax.classifiers import settings as settings_lib
from kaiju_jax.classifiers import train_gate
from kaiju_jax.reporting import decision
from kaiju_jax.serving.safety import gate as gate_lib
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import reading
from kaiju_jax.serving.safety import thresholds

BOTH = thresholds.TIERS


def test_rows_are_read(tmp_path):
  (tmp_path / 'a').write_text(
    '{"text": "one", "labels": {"b": true, "a": false}}\n\n'
    '{"text": "two", "labels": {"a": false, "b": false}, "age": "minor"}\n'
  )
  rows = rows_lib.read(str(tmp_path / 'a'))
  assert rows.names == ('a', 'b')
  assert rows.rows == (
    rows_lib.Row('one', (False, True), BOTH),
    rows_lib.Row('two', (False, False), ('minor',)),
  )
  assert rows.label_NC.tolist() == [[False, True], [False, False]]


GOOD = '{"text": "good", "labels": {"a": true}}\n'


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (GOOD + '[]', 'line 2: .*must be an object'),
    (GOOD.replace('}}', '}, "tag": 1}'), 'line 1: tag: no such field'),
    (GOOD + GOOD.replace('"good"', '3'), 'line 2: text=3: must be str'),
    (GOOD.replace('true', '1'), 'line 1: labels=.*true or false'),
    ('{"text": "x"}', 'line 1: labels: missing'),
    (GOOD + GOOD.replace('"a"', '"b"'), 'line 2: .*every row must label a'),
    (GOOD.replace('}}', '}, "age": 17}'), 'line 1: age=17'),
    ('{"text"', 'line 1: '),
    ('\n', 'holds no rows'),
    (GOOD.replace('"a": true', ''), 'there must be at least one'),
  ],
)
def test_bad_files_are_refused_by_line_and_field(tmp_path, text, message):
  (tmp_path / 'a').write_text(text)
  with pytest.raises(ValueError, match=message):
    rows_lib.read(str(tmp_path / 'a'))


def test_parts_have_no_text_in_common_and_stay():
  rows = planted.draw_rows(100, 100, 0)
  parts = rows_lib.split(rows, 0.2, 0.4, 0)
  sizes = {part: len(found.rows) for part, found in parts.items()}
  assert sum(sizes.values()) == 300
  assert 80 < sizes['certify'] < 160 and 30 < sizes['choose'] < 90
  texts = {part: {x.text for x in found.rows} for part, found in parts.items()}
  assert (
    not texts['train'] & texts['choose'] | texts['certify'] & texts['choose']
  )
  # Some more rows move none.
  more = dataclasses.replace(
    rows, rows=planted.draw_rows(10, 10, 1).rows + rows.rows[::-1]
  )
  for part, found in rows_lib.split(more, 0.2, 0.4, 0).items():
    assert texts[part] <= {x.text for x in found.rows}
  assert texts['train'] != {
    x.text for x in rows_lib.split(rows, 0.2, 0.4, 1)['train'].rows
  }


def test_a_text_is_counted_once_however_it_is_written():
  copies = 'Say it, now', 'say  IT now!', 's a y i t n o w'
  rows = rows_lib.Rows(
    ('a',),
    (
      *(rows_lib.Row(text, (False,)) for text in copies),
      rows_lib.Row('once', (False,), ('minor',)),
      rows_lib.Row('Once', (True,), ('adult',)),
      rows_lib.Row('ONCE', (False,), ('minor',)),
    ),
  )
  parts = rows_lib.split(rows, 0.2, 0.4, 0).values()
  found = [(x.text, x.tiers) for part in parts for x in part.rows]
  assert sorted(found) == [
    ('Once', ('adult',)),
    ('Say it, now', BOTH),
    ('once', ('minor',)),
  ]
  one, other = rows_lib.Row('a', (False,)), rows_lib.Row('A', (True,))
  with pytest.raises(ValueError, match="'A' and 'a' read the same"):
    rows_lib.split(rows_lib.Rows(('a',), (one, other)), 0.2, 0.4, 0)


def test_splits_that_leave_nothing_are_refused():
  for choose, certify in (0, 0.4), (0.2, 0), (0.5, 0.6):
    with pytest.raises(ValueError, match=f'choose={choose}, certify={certify}'):
      rows_lib.split(planted.draw_rows(1, 1, 0), choose, certify, 0)


def test_planted_markers_are_in_violating_texts_alone():
  rows = planted.draw_rows(50, 100, 0)
  assert len(rows.rows) == 200
  for row in rows.rows:
    found = [
      any(marker in row.text for marker in planted.MARKERS[name])
      for name in rows.names
    ]
    assert found == list(row.labels)
  assert {row.tiers for row in rows.rows} == {BOTH, ('adult',), ('minor',)}


def test_disguises_have_the_texts_skeleton():
  text = 'so then zorbifex cried over the map'
  for way in disguise.DISGUISES.values():
    assert way(text) != text
    found = reading.skeleton(reading.plain(way(text)))
    assert found == reading.skeleton(text)


def test_texts_among_others():
  rng = np.random.default_rng(0)
  for before, where in (1.0, str.endswith), (0.0, str.startswith):
    text = disguise.pad('the text', ['a', 'bc'], 100, before, rng)
    assert where(text, 'the text') and 90 <= len(text) <= 110
  assert disguise.pad('the text', ['a'], 3, 0.5, rng) == 'the text'
  rows = rows_lib.Rows(('a',), (rows_lib.Row('x', (True,)),))
  with pytest.raises(ValueError, match='no benign text'):
    disguise.add_padded(rows, 100, 0)


@pytest.fixture(scope='module')
def trained():
  pytest.importorskip('sklearn', reason='scikit-learn is not installed')
  settings = gate_lib.Settings(
    views=(gate_lib.View('skeleton', 'char', 4, 5),), features=2**13
  )
  division = settings_lib.Division(choose=0.2, certify=0.3)
  training = train_gate.Settings(division, settings=settings)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(train_gate, '_SAMPLE', 5)
    return train_gate.train(planted.draw_rows(150, 150, 0), training)


def test_a_gate_learns_the_markers(trained):
  gate = trained.gate
  assert gate.names == ('quam', 'zorb')
  assert gate.trained.library.startswith('scikit-learn 1.')
  assert gate.trained.rows == trained.sizes['train']
  benign, violating = 'the knight sang all night', 'the zorbifex sang all night'
  limits = trained.stage.adult.limits
  assert thresholds.find_reached(limits, gate.score(benign)) is None
  assert thresholds.find_reached(limits, gate.score(violating))[0] == 'zorb'


def test_too_few_texts_certify_nothing(trained, tmp_path):
  assert trained.outcome.policy is None
  assert trained.outcome.decision.status == decision.NOT_EVALUATED
  assert (
    'it takes 368 of each tier and dimension'
    in trained.outcome.decision.reasons[0]
  )
  text = train_gate.page(trained).markdown()
  assert '**Not certified**' in text and '| minor | zorb |' in text
  train_gate.write(trained, tmp_path / 'out')
  assert {path.name for path in (tmp_path / 'out').iterdir()} == {
    moderation.GATE,
    'report.html',
    'report.json',
    'report.md',
    decision.FILE,
  }
  with pytest.raises(FileExistsError):
    train_gate.write(trained, tmp_path / 'out')


def test_long_texts_teach_by_their_segments():
  """A marker far into long violating texts is learnt; what is around is not."""
  pytest.importorskip('sklearn', reason='scikit-learn is not installed')
  rows = planted.draw_rows(60, 120, 0)
  rows = disguise.add_padded(rows, 1500, 0)
  settings = gate_lib.Settings(
    rows.names, (gate_lib.View('skeleton', 'char', 4, 5),), 2**13
  )
  gate = train_gate.fit(rows, rows, settings, train_gate.Settings())
  benign = [row.text for row in planted.draw_rows(1, 60, 7).rows[2:]]
  scores = [gate.score(text)[1] for text in benign]
  marked = [gate.score(f'{text} zorbifex')[1] for text in benign]
  assert np.median(scores) < 0.1 and np.mean(np.array(marked) > 0.5) > 0.9


def test_a_part_without_texts_is_named():
  pytest.importorskip('sklearn', reason='scikit-learn is not installed')
  with pytest.raises(ValueError, match='no such text is left to'):
    train_gate.train(planted.draw_rows(2, 2, 0), train_gate.Settings())
