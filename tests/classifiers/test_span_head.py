"""From labelled spans to a head that a run has trained and measured."""

import re

import numpy as np
import pytest

from experiments.configs import sft
from kaiju_jax.classifiers import heads
from kaiju_jax.classifiers import planted
from kaiju_jax.classifiers import planted_spans
from kaiju_jax.classifiers import rows as rows_lib
from kaiju_jax.classifiers import settings as settings_lib
from kaiju_jax.classifiers import span_head
from kaiju_jax.data import spans
from kaiju_jax.evaluation import token_labels
from kaiju_jax.runs import train
from kaiju_jax.storage import files
from kaiju_jax.training import workdir
from tests.tasks import labelled


def test_plain_chats_have_no_planted_text_and_more_of_their_own():
  def words(chats, planted_too):
    return [
      sum(
        len(x['content'].split())
        for x in one['messages'][1:]
        if planted_too or 'spans' not in x
      )
      for one in chats
    ]

  plain = list(planted_spans.chats(30, 0, 1.0))
  assert not any('spans' in x for one in plain for x in one['messages'])
  full = list(planted_spans.chats(30, 0))
  assert np.mean(words(plain, False)) > 1.5 * np.mean(words(full, False))
  mixed = list(planted_spans.chats(60, 0, 0.5))
  is_plain = [not any('spans' in x for x in one['messages']) for one in mixed]
  assert 15 < sum(is_plain) < 45
  # Who has planted texts has the same ones, whatever the share.
  assert all(mixed[n] == full[n] for n in range(30) if not is_plain[n])


def test_planted_chats_hold_no_text_that_is_certified(tmp_path):
  certified = {
    rows_lib.skeleton(row.text) for row in planted.draw_certifiable(0).rows
  }
  path, labelled, kinds = tmp_path / 'chats.jsonl', 0, set()
  chats = list(planted_spans.chats(20, 0))
  files.write_json_lines(path, chats)
  assert spans.list_dimensions(spans.read(str(path))) == ['quam', 'zorb']
  for one in chats:
    messages, found = spans.parse(one)
    for message, own, raw in zip(messages, found, one['messages']):
      words = {message.content[x.start : x.end] for x in own}
      expected = re.findall(
        r'(?<!\S)(?:zorbifex(?:es)?|quamlith|vexil torm)(?!\S)', message.content
      )
      assert sorted(words) == sorted(set(expected))
      labelled += len(words)
      if 'spans' in raw:
        assert rows_lib.skeleton(message.content) not in certified
        # The language model learns to say none of them.
        assert message.role == 'user' or message.weight == 0
    kinds.add((messages[0].role, messages[1].role))
  assert labelled > 40 and len(kinds) > 1


def test_a_planted_text_that_is_certified_is_drawn_anew():
  def plant(held_out):
    rng = np.random.default_rng(0)
    return planted_spans.plant(rng, 'user', held_out)['content']

  first = plant(set())
  assert plant({rows_lib.skeleton('other')}) == first
  assert plant({rows_lib.skeleton(first)}) != first


def test_the_report_says_what_was_recognized_and_when():
  measured = {
    'a': token_labels.Measured(
      4, 9, 0.98765, 1.5, np.array([0, 0, 3]), 0.25, (0, 300)
    ),
    'b': token_labels.Measured(1, 2, 0.5, 1.5, np.zeros(0, int), 0, (2, 2)),
  }
  table = span_head.page(measured).parts[1]
  assert [' '.join(cells) for cells in table.cells()] == [
    'a 4 9 0.9877 3 of 4 2 of 4 3 0.25000 0 of 300 0.994%',
    'b 1 2 0.5000 0 of 1 0 of 1 - 0.00000 2 of 2 100.000%',
  ]


def test_a_head_needs_texts_that_are_held_out(tmp_path):
  one = labelled.experiment_of(labelled.write(tmp_path / 'a.jsonl'))
  one.data.held_out = 0.0
  with pytest.raises(ValueError, match=r'data\.held_out=0\.0: must be above'):
    span_head.measure(one, None)


@pytest.mark.slow
def test_a_run_trains_a_head_alone_or_with_its_model(tmp_path):
  path = labelled.write(tmp_path / 'labelled.jsonl', count=60)
  base = labelled.experiment_of(path)
  base.objective.token_head.frozen = False
  base.loop.steps = base.loop.checkpoint_every = 1
  before = train.train(base, tmp_path / 'base').params['blocks']
  for joint in 0.0, 0.5:
    settings = settings_lib.Spans(
      joint=joint, steps=20, rate=0.05, label_weights='balanced'
    )
    one = span_head.make(tmp_path / 'base', path, labelled.NAMES, settings)
    one.data.held_out = 0.3
    out = tmp_path / f'joint_{joint}'
    measured = span_head.train(one, out)
    assert set(measured) == set(labelled.NAMES)
    # Which bytes a marker has is easily learnt; 0.5 is chance.
    assert measured['one'].auroc > 0.7
    assert (out / 'report.md').read_text().startswith('# Token head')
    params, config = heads.load(out, 16)
    assert config.names == labelled.NAMES
    assert np.abs(params['w_DC']).max() > 0
    # The same again trains nothing, and returns what was trained.
    after = train.train(one, out).params['blocks']
    layer = 'layer_0'
    is_same = all(
      np.array_equal(a, b)
      for a, b in zip(
        before[layer]['feedforward'].values(),
        after[layer]['feedforward'].values(),
      )
    )
    assert is_same == (not joint)


def test_a_run_that_was_moved_is_begun_with_by_its_own_tokenizer(tmp_path):
  one = labelled.experiment_of(labelled.write(tmp_path / 'labelled.jsonl'))
  one.data.tokenizer = 'before/tokenizer.json'
  before, moved = tmp_path / 'before', tmp_path / 'moved'
  with workdir.open_workdir(before, one):
    pass
  (before / 'tokenizer.json').write_text('{}')
  before.rename(moved)
  settings = settings_lib.Spans()
  for made in (
    span_head.make(moved, one.data.path, labelled.NAMES, settings),
    sft.get_config(str(moved)),
  ):
    assert made.data.tokenizer == str(moved / 'tokenizer.json')
