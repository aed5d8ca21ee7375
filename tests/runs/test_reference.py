"""From swipes to a model that prefers what was kept, and what is refused."""

import dataclasses
import json

import numpy as np
import pytest

from kaiju_jax.data import choices
from kaiju_jax.runs import exchange
from kaiju_jax.runs import load
from kaiju_jax.runs import reference
from kaiju_jax.runs import train
from kaiju_jax.tasks import registry
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training.records import metrics
from tests import toys

LENGTH = 64
USER = {'role': 'user', 'content': 'zz'}


def swipes(path, count=4):
  """Writes turns of two replies, of which a user keeps the one with 'a'."""
  lines = []
  for number in range(count):
    replies = [
      {'content': f'{text}{number}', 'kept': text == 'a'} for text in 'ab'
    ]
    said = [USER, {'role': 'assistant', 'replies': replies}]
    lines.append(json.dumps({'messages': said}) + '\n')
  path.write_text(''.join(lines))


def experiment(path, **fields) -> experiment_lib.Experiment:
  one = toys.tiny_chat_experiment(path, LENGTH)
  one.optimizer.warmup = 0.0
  one.loop.steps = one.loop.log_every = 1
  return dataclasses.replace(one, **fields)


def preferring(path, **fields):
  one = experiment(path, **fields)
  one.data.task, one.objective.name = 'choices', 'preference'
  return one


@pytest.mark.slow
def test_a_policy_begins_at_log_2_and_learns_what_was_kept(tmp_path):
  swipes(tmp_path / 'swipes.jsonl')
  before = experiment(tmp_path / 'swipes.jsonl')
  train.train(before, tmp_path / 'before')
  exchange.export(tmp_path / 'before', tmp_path / 'export', 'kaiju')
  exported = load.from_anywhere(tmp_path / 'export')
  assert exported.params  # Int8 codes, frozen.
  out = tmp_path / 'reference.npz'
  path = str(tmp_path / 'swipes.jsonl')
  assert reference.write(exported, path, out, LENGTH) == (4, 4)
  held = choices.read_reference(out)
  # More text: only that is read. Another model: all of it.
  swipes(tmp_path / 'swipes.jsonl', 6)
  assert reference.write(exported, path, out, LENGTH) == (6, 2)
  again = choices.read_reference(out)
  for name, values in held.log_p.items():
    np.testing.assert_array_equal(again.log_p[name], values)
  # Contrast: a reference that reads in bf16 begins elsewhere, already in sums
  # of three tokens.
  coarse = exported._replace(
    config=dataclasses.replace(exported.config, dtype='bfloat16')
  )
  reference.write(coarse, path, tmp_path / 'coarse.npz', LENGTH)
  coarse = choices.read_reference(tmp_path / 'coarse.npz')
  lead = [np.diff(again.log_p[x] - coarse.log_p[x]) for x in again.log_p]
  lead = np.concatenate(lead) * 0.1  # β
  off = np.abs(np.logaddexp(0, -lead).mean() - np.log(2))
  assert off > 1e-4
  after = preferring(path, begin_with=str(tmp_path / 'before'))
  after.data.reference = str(out)
  after.loop.steps = 8
  after.optimizer.learning_rate = 1e-2
  train.train(after, tmp_path / 'after')
  found = metrics.read(tmp_path / 'after')
  np.testing.assert_allclose(found[0]['loss'], np.log(2), atol=1e-6)
  assert found[-1]['loss'] < found[0]['loss'] - 0.05
  assert found[-1]['accuracy'] == 1
  later = load.from_workdir(tmp_path / 'after')
  assert reference.write(later, path, out, LENGTH) == (6, 6)


def test_a_reference_that_does_not_fit_is_refused(tmp_path):
  path = tmp_path / 'swipes.jsonl'
  swipes(path)
  one = preferring(path)

  def refused(message, **fields):
    changes = {f'data.{name}': value for name, value in fields.items()}
    with pytest.raises(ValueError, match=message):
      registry.rows(toys.change(one, changes))

  refused('must name the file that experiments')
  one.objective.preference.loss = 'options'
  assert len(registry.rows(one)[0].extras) == 3
  refused('trees are never cut', length=16)
  reference_file = str(tmp_path / 'reference.npz')
  refused("must be '' for objective", length=LENGTH, reference=reference_file)
  one.objective.preference.loss = 'kept'
  other = choices.Reference('model', 'another', {})
  choices.write_reference(reference_file, other)
  refused('another tokenizer than data')


@pytest.mark.parametrize(
  'field, value, message',
  [
    ('loss', 'dpo', "loss='dpo': .*'kept', 'pairs', 'options'"),
    ('beta', 0.0, r'beta=0\.0: '),
    ('nll', -1.0, r'nll=-1\.0: '),
  ],
)
def test_wrong_settings_are_refused(tmp_path, field, value, message):
  one = preferring(tmp_path / 'swipes.jsonl')
  setattr(one.objective.preference, field, value)
  with pytest.raises(ValueError, match=message):
    train.check(one)
