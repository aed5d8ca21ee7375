"""Rows of a store of conversations or choices are those of its files."""

import copy
import dataclasses
import functools
import json
import pickle

import numpy as np
import pytest

from kaiju_jax.data import choices
from kaiju_jax.data import loader
from kaiju_jax.data.curation import collections
from kaiju_jax.data.store import corpora
from kaiju_jax.data.store import write
from kaiju_jax.tasks import conversations
from kaiju_jax.tasks import registry
from tests import toys
from tests.interchange.templates import shapes

# Only conversations are cut.
TASKS = {'conversations': (128, 'language'), 'choices': (640, 'preference')}


def _talk(rng, number):
  """A conversation, whose replies are weighed and sometimes swiped."""
  said = [{'role': 'system', 'content': f'é{number}'}] if number % 3 else []
  for turn in range(1 + number % 5):
    texts = ['ab' * n for n in rng.integers(1, 16, 3)]
    said.append({'role': 'user', 'content': texts[0] + '?'})
    reply = {'role': 'assistant', 'weight': (0.0, 0.25, 1.0, 2.5)[turn % 4]}
    if (number + turn) % 2:
      kept = (True, number % 7 == 0)
      reply['replies'] = [
        {'content': one, 'kept': kept[n]} for n, one in enumerate(texts[1:])
      ]
    said.append(reply if 'replies' in reply else reply | {'content': texts[1]})
  return {'messages': said, 'weight': 0.5 + number % 2}


@pytest.fixture(scope='module')
def file(tmp_path_factory):
  rng = np.random.default_rng(0)
  lines = (json.dumps(_talk(rng, number)) for number in range(70))
  path = tmp_path_factory.mktemp('chats') / 'chats.jsonl'
  path.write_text('\n'.join(lines))
  return path


def _experiment(path, task):
  length, objective = TASKS.get(task, (128, 'language'))
  one = toys.tiny_chat_experiment(path, length)
  changed = {'task': task, 'held_out': 0.2, 'end_weight': 0.5}
  one.data = dataclasses.replace(one.data, **changed)
  one.objective.preference.loss = 'options'
  one.objective.name = objective
  return one


def _make(one, out):
  write.write(one.data, str(out), conversations.encoder_of, shard=1000)


@pytest.fixture(scope='module', params=TASKS)
def both(request, file, tmp_path_factory):
  """The same experiment on the file and on its store."""
  store = tmp_path_factory.mktemp('made') / 'store'
  one = _experiment(file, request.param)
  _make(one, store)
  assert len(list(store.glob('*.safetensors'))) > 3
  return one, _experiment(store, request.param)


def _read(one):
  registry.check(one)
  reads = {
    'conversations': conversations.read_fine_tuning,
    'choices': conversations.read_choices,
  }
  return reads[one.data.task](one)


def _assert_equal(one, other):
  for name, a, b in zip(one._fields[:-1], one, other):
    np.testing.assert_array_equal(a, b, err_msg=name)
  extras = one.extras or {}
  assert extras.keys() == (other.extras or {}).keys()
  for name, values in extras.items():
    np.testing.assert_array_equal(values, other.extras[name], err_msg=name)


def test_rows_of_a_store_are_those_of_its_file(both, capsys):
  expected, said = _read(both[0]), capsys.readouterr().err
  found = _read(both[1])
  assert capsys.readouterr().err == said and 'Left out' in said
  assert found.text == expected.text
  for stored, rows in zip(found[:2], expected[:2]):
    assert len(stored) == len(rows) > 1
    for index in range(3 * len(rows) + 2):
      _assert_equal(stored[index], rows[index])
      assert stored.locate(index) == rows.locate(index)
  # A resumed run begins in the middle.
  index = 2 * len(expected.rows) + 1
  _assert_equal(_read(both[1]).rows[index], expected.rows[index])
  rows = expected.rows
  weights = np.concatenate([rows[n].weight for n in range(len(rows))])
  assert len(np.unique(weights)) > 3
  tokens = np.concatenate([rows[n].tokens for n in range(len(rows))])
  (ends,) = np.nonzero((tokens == 3) & (weights > 0))
  factor = 0.5 if both[0].data.task == 'conversations' else 1.0
  np.testing.assert_array_equal(weights[ends], factor * weights[ends - 1])


def test_what_was_left_out_is_said_once(both, tmp_path, monkeypatch, capsys):
  """Also by the run that makes the store of later ones."""
  monkeypatch.setattr(write, '_HAS_AFFINITY', False)
  monkeypatch.setattr(write, '_SMALL', 0)
  said = set()
  for stores in '', str(tmp_path), str(tmp_path):
    monkeypatch.setenv('KAIJU_STORES', stores)
    _read(both[0])
    said.add(capsys.readouterr().err)
  assert len(said) == 1 and len([*tmp_path.iterdir()]) == 1


def test_eight_processes_go_on_in_a_store(both):
  def batches(one, own=None):
    found = _read(one)
    return loader.batches(found.rows, 8, own=own, text=found.text)

  whole = batches(both[0])
  next(whole)
  state = json.loads(json.dumps(whole.get_state()))
  expected = [next(whole) for _ in range(5)]
  for process in range(8):
    own = batches(both[1], [process])
    own.set_state(state)
    for batch in expected:
      one = next(own)
      for a, b in zip(one[:-1], batch[:-1]):
        np.testing.assert_array_equal(a[:, 0], b[:, process])


OTHERS = {
  'task': None,
  'held_out': 0.25,
  'tokenizer': None,
  'chat_template': None,
  'length': 639,
  'end_weight': 1.0,
}


@pytest.mark.parametrize('name', OTHERS)
def test_other_settings_are_refused_or_a_run_s_own(
  both, name, tmp_path, monkeypatch
):
  one, stored = map(copy.deepcopy, both)
  value = OTHERS[name]
  if name == 'task':
    value = (TASKS.keys() - {one.data.task}).pop()
    stored = _experiment(stored.data.path, value)
  if name == 'tokenizer':
    stored.model.vocab_size, value = 512, str(tmp_path / 'tokenizer.json')
    (tmp_path / 'tokenizer.json').write_text(shapes.byte_tokenizer())
  if name == 'chat_template':
    read, value = conversations._format_of, 'x'

    def format_of(data, *more):
      found = read(dataclasses.replace(data, chat_template=''), *more)
      return dataclasses.replace(found, digest=data.chat_template)

    monkeypatch.setattr(conversations, '_format_of', format_of)
    registry.check(stored)
  setattr(one.data, name, value)
  setattr(stored.data, name, value)
  if name in ('length', 'end_weight') and one.data.task == 'choices':
    expected, found = _read(one).rows, _read(stored).rows
    for index in range(2 * len(expected)):
      _assert_equal(found[index], expected[index])
    return
  with pytest.raises(ValueError, match=f'^data.{name}=.*Set that, or make'):
    registry.check(stored)


def test_references_and_readers_of_text(both):
  task, stored = both[0].data.task, both[1].data.path
  if task == 'choices':
    for ours, theirs in zip(*(corpora.load(x.data, _encoder(x)) for x in both)):
      hashes = [list(choices.hash_documents(x)) for x in (ours, theirs)]
      assert hashes[0] == hashes[1] and len(set(hashes[0])) > 5
      assert list(theirs.choices) == list(ours.choices)
  with pytest.raises(ValueError, match=f'--target=.* of {task}'):
    collections.collection('', stored, '--target')
  with pytest.raises(ValueError, match=r"^data\.task='text': .*for 'c"):
    registry.check(_experiment(stored, 'text'))


def _encoder(one):
  """The encoder that another process would make."""
  make = functools.partial(conversations.encoder_of, one.data)
  return pickle.loads(pickle.dumps(make))()


@pytest.mark.parametrize('task', TASKS)
def test_files_without_enough_are_refused(tmp_path, task):
  file = tmp_path / 'chats.jsonl'
  line = json.dumps(_talk(np.random.default_rng(1), 1))
  silent = {'messages': [{'role': 'assistant', 'content': 'x'}], 'weight': 0}
  silent = json.dumps(silent)
  for lines, message in (
    ([silent] * 9, 'to train on'),
    ([line, *[silent] * 40], 'to (train on|hold out)'),
    ([line], 'at least two conversations'),
    ([line, '{'], 'line 2'),
  ):
    file.write_text('\n'.join(lines))
    one = _experiment(file, task)
    with pytest.raises(ValueError, match=message):
      _read(one)
    with pytest.raises(ValueError, match=message):
      _make(one, tmp_path / str(len(lines)))
