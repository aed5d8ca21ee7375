"""A run on labelled texts: its rows, its refusals, and its resuming."""

import json

import numpy as np
import pytest

from kaiju_jax.data import packing
from kaiju_jax.data import spans
from kaiju_jax.runs import train
from kaiju_jax.tasks import registry
from tests import toys
from tests.tasks import labelled


def test_a_run_learns_from_spans_and_refuses_other_labels(tmp_path):
  path = tmp_path / 'labelled.jsonl'
  one = labelled.experiment_of(labelled.write(path))
  state = train.train(one, tmp_path / 'run', until=2)
  assert np.abs(state.params['token_head']['w_DC']).max() > 0
  # The texts are the same, and their labels are not.
  labelled.write(path, marked=(2, 4))
  lines = path.read_text().splitlines()
  first = json.loads(lines[0])
  first['spans'][0]['end'] -= 1
  path.write_text('\n'.join([json.dumps(first), *lines[1:]]))
  with pytest.raises(ValueError, match='the text is not what it was'):
    train.train(one, tmp_path / 'run')


def test_dimensions_weigh_the_same_in_rows_and_held_out_ones(tmp_path):
  path = labelled.write(tmp_path / 'labelled.jsonl')
  found = registry.task_of(one := labelled.experiment_of(path)).load(one)
  rows = [found.rows[n] for n in range(len(found.rows))]
  batch = packing.stack(rows)
  label_BLC, weight_BLC = (
    batch.extras[name].astype(float) for name in (spans.LABEL, spans.WEIGHT)
  )
  total_C = weight_BLC.sum(axis=(0, 1))
  np.testing.assert_allclose(total_C, (batch.source_BL >= 0).sum(), rtol=1e-5)
  part_C = (weight_BLC * label_BLC).sum(axis=(0, 1)) / total_C
  np.testing.assert_allclose(part_C, 0.5, rtol=1e-5)
  within = 0
  for tokens in spans.TOKENS:
    one = labelled.experiment_of(
      path, label_weights='equal', span_tokens=tokens
    )
    row = registry.task_of(one).load(one).rows[0]
    weight_LC = row.extras[spans.WEIGHT][row.source >= 0]
    assert set(np.unique(weight_LC)) <= {0.0, 1.0}
    assert weight_LC.all() == (tokens == 'all')
    within += (weight_LC == 0).sum()
  # Of each marker's four bytes, three have no weight.
  assert within == 3 * (row.extras[spans.LABEL] * weight_LC[0, 0]).sum() / 4


@pytest.mark.parametrize(
  'change, message',
  [
    ({'data.path': ''}, "data.path='': must name"),
    ({'data.path': 'nowhere.jsonl'}, 'no such file'),
    ({'data.span_tokens': 'first'}, "data.span_tokens='first'"),
    ({'data.label_weights': 'rare'}, "data.label_weights='rare'"),
  ],
)
def test_settings_that_fit_no_spans_are_refused(tmp_path, change, message):
  one = labelled.experiment_of(labelled.write(tmp_path / 'labelled.jsonl'))
  with pytest.raises((OSError, ValueError), match=message):
    train.train(toys.change(one, change), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_texts_from_which_nothing_can_be_learnt_are_refused(tmp_path):
  one = labelled.experiment_of(labelled.write(tmp_path / 'few.jsonl', count=1))
  one.data.held_out = 0.0
  assert registry.task_of(one).load(one).evaluator is None
  one.data.held_out = 1e-9
  with pytest.raises(ValueError, match='needs at least two texts in data'):
    registry.task_of(one).load(one)
