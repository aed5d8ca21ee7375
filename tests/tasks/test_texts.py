"""A run on several sources: their mix, their curves, and what is refused."""

import contextlib
import dataclasses
import json

import jax
import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.data import documents
from kaiju_jax.data import loader
from kaiju_jax.data import mix_file
from kaiju_jax.data import packing
from kaiju_jax.experiments.studies.ablation import ablate
from kaiju_jax.runs import train
from kaiju_jax.storage import files
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.tasks import texts as texts_lib
from kaiju_jax.training import workdir as workdir_lib
from tests import records
from tests import toys

NAMES = 'bottles', 'digits'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('mixed')
  toys.write_texts(folder).rename(folder / 'bottles')
  (folder / 'digits').mkdir()
  for n in range(12):
    (folder / 'digits' / f'{n}.txt').write_text(f'{n} 2718 31415 ' * 40)
  return folder


def _experiment(folder, **fields):
  experiment = toys.tiny_experiment(folder, steps=6)
  experiment.data = dataclasses.replace(
    experiment.data,
    path='',
    batch=4,
    anneal_at=0.5,
    mix_block=8,
    sources=tuple(
      data_config.SourceConfig(name, str(folder / name), weight, anneal)
      for name, weight, anneal in zip(NAMES, (0.75, 0.25), (0.0, 1.0))
    ),
    **fields,
  )
  return experiment


@pytest.fixture(scope='module')
def whole(folder):
  workdir = folder / 'whole'
  return workdir, train.train(_experiment(folder), workdir)


@pytest.mark.slow
def test_a_run_stopped_inside_a_block_resumes_to_the_same_bits(
  folder, whole, tmp_path
):
  workdir, state = whole
  part = tmp_path / 'part'
  train.train(_experiment(folder), part, until=2)
  resumed = train.train(_experiment(folder), part)
  jax.tree.map(np.testing.assert_array_equal, resumed, state)
  assert records.of(part) == records.of(workdir)


def _batches(experiment):
  tasks._haystacks.cache_clear()  # As in another process.
  data = tasks.task_of(experiment).load(experiment)
  return loader.batches(data.rows, batch=4, text=data.text)


def _name(is_held_out):
  """Returns a new file's name whose text is held out, or is not."""
  names = (f'more{n}.txt' for n in range(99))
  return next(
    name for name in names if documents.is_held_out(name, 0.2) == is_held_out
  )


@pytest.mark.parametrize(
  'is_held_out, part', [(False, 'Training'), (True, 'Held out')]
)
@pytest.mark.parametrize('task', ['text', 'properties', 'needle_text', 'mix'])
def test_text_that_grew_since_the_checkpoint_is_refused(
  folder, task, is_held_out, part
):
  if task == 'mix':
    experiment, field = _experiment(folder), "data.sources, 'digits'"
  else:
    fields = {'sources': (), 'anneal_at': 1.0, 'path': str(folder / 'digits')}
    experiment = _changed(folder, **fields, task=task)
    field = 'data.path'
  if task == 'needle_text':  # Its held-out text is a part of the same bytes.
    part = 'Training'
    experiment.data.length = 640
  with contextlib.closing(_batches(experiment)) as before:
    next(before)
    state = json.loads(json.dumps(before.get_state()))
  with contextlib.closing(_batches(experiment)) as same:
    same.set_state(state)
  name = _name(is_held_out)
  more = folder / 'digits' / name
  more.write_text('more ' * 99)
  try:
    after = _batches(experiment)
  finally:
    more.unlink()
  message = f'{field}: the text is not .* {part}: .* New: {name}. A run goes on'
  with contextlib.closing(after), pytest.raises(ValueError, match=message):
    after.set_state(state)


def test_every_source_has_its_curves(whole):
  steps = [one for one in records.of(whole[0]) if 'loss' in one]
  for one in steps:
    shares = [one[f'share/{name}'] for name in NAMES]
    assert sum(shares) == pytest.approx(1)
    losses = [one.get(f'loss/{name}', 0) for name in NAMES]
    assert np.dot(shares, losses) == pytest.approx(one['loss'], rel=1e-5)
  # Three quarters of 12 rows, then none: its loss is not recorded.
  assert np.mean([one['share/bottles'] for one in steps[:3]]) == pytest.approx(
    0.75, abs=0.03
  )
  for one in steps[3:]:
    assert one['share/bottles'] == 0 and 'loss/bottles' not in one
  held_out = records.of(whole[0])[-1]
  for reading in 'loss', 'bits_per_byte':
    own = [held_out[f'eval_{reading}/{name}'] for name in NAMES]
    assert all(1 < one < 10 for one in own)
    mixed = np.dot([0.375, 0.625], own)
    assert held_out[f'eval_{reading}'] == pytest.approx(mixed)


def test_the_workdir_holds_the_weights_of_a_mix_json(
  folder, tmp_path, monkeypatch
):
  monkeypatch.setattr(train, '_train', lambda *arguments: arguments[0])
  workdir, mix = tmp_path / 'w', tmp_path / 'mix.json'
  experiment = _experiment(folder, mix=str(mix))
  for weight in 0.5, 0.25:
    sources = [
      dataclasses.replace(one, weight=weight) for one in experiment.data.sources
    ]
    mix_file.write(mix, sources, {})
    if weight == 0.5:
      made = train.train(experiment, workdir)
      with workdir_lib.open_workdir(workdir, made):
        pass
      held = files.read_json(workdir / 'config.json')['data']
      assert held['mix'] == ''
      assert [one['weight'] for one in held['sources']] == [0.5, 0.5]
      train.train(experiment, workdir)
  with pytest.raises(
    ValueError, match=r'data.sources\[0\].weight: 0.5 in the workdir, 0.25'
  ):
    train.train(experiment, workdir)


def _changed(folder, **fields):
  experiment = _experiment(folder)
  experiment.data = dataclasses.replace(experiment.data, **fields)
  return experiment


@pytest.mark.parametrize(
  'fields, path, message',
  [
    ({}, 'no', "data.sources, 'digits': .*no such file"),
    ({}, 'empty', "'digits': .*the files hold no text"),
    ({'mix': 'no.json'}, None, "data.mix='no.json': no.json: no such file"),
    ({'task': 'needle'}, None, "data.sources: .*data.task='text'"),
  ],
)
def test_what_cannot_be_mixed_is_refused_by_name(
  folder, tmp_path, fields, path, message
):
  (tmp_path / 'empty').mkdir()
  (tmp_path / 'empty' / 'a.txt').write_text('')
  experiment = _changed(folder, **fields)
  if path is not None:
    experiment.data.sources[1].path = str(tmp_path / path)
  with pytest.raises((OSError, ValueError), match=message) as error:
    train.train(experiment, tmp_path / 'w')
  assert '\n' not in str(error.value)
  assert not (tmp_path / 'w').exists()


def test_weights_count_the_tokens_of_trees_too(folder, tmp_path):
  """A row has room for one tree of 20 to 31 tokens, and for no second."""
  trees = tmp_path / 'trees.jsonl'
  lines = []
  for n in range(60):
    texts = 'abcde', 'x' * (9 + n % 6), 'y' * (5 + n % 6)
    nodes = zip(texts, (-1, 0, 0))
    segments = [{'text': text, 'parent': parent} for text, parent in nodes]
    lines.append(json.dumps({'segments': segments}))
  trees.write_text('\n'.join(lines))
  sources = (
    data_config.SourceConfig('trees', str(trees)),
    data_config.SourceConfig('digits', str(folder / 'digits')),
  )
  experiment = _changed(folder, sources=sources, anneal_at=1.0)
  experiment.loop.steps = 200
  rows = tasks.rows(experiment)
  tokens = np.zeros(2)
  for index in range(len(rows)):
    row = rows[index]
    tokens[row.extras[packing.COMPONENT]] += (row.source >= 0).sum()
  assert tokens[0] / tokens.sum() == pytest.approx(0.5, abs=0.005)
  assert rows.shares == pytest.approx([0.5, 0.5])
  by_rows = rows.counts(len(rows)) / len(rows)
  assert by_rows[0] > 0.54


def test_a_mixture_of_one_source_is_the_run_of_its_path(folder):
  mixed = _experiment(folder)
  mixed.data.sources = (
    data_config.SourceConfig('only', str(folder / 'digits')),
  )
  mixed.data.anneal_at = 1.0
  alone = _changed(folder, sources=(), path=str(folder / 'digits'))
  alone.data.anneal_at = 1.0
  one, other = tasks.rows(mixed), tasks.rows(alone)
  for index in range(30):
    for a, b in zip(one[index][:-1], other[index][:-1]):
      np.testing.assert_array_equal(a, b)
    assert other[index].extras is None


def test_texts_come_from_all_sources_in_turn(folder):
  found = tasks.texts(_experiment(folder), 2)
  assert [b'bottles' in bytes(row.tolist()) for row in found] == [True, False]
  assert texts_lib.first(_experiment(folder), 1).shape == (1, 32)


def test_a_mix_that_another_tool_wrote(folder, tmp_path):
  sources = [
    {'name': name, 'path': str(folder / name), 'weight': 1} for name in NAMES
  ]
  (tmp_path / 'mix.json').write_text(json.dumps({'sources': sources}))
  experiment = _changed(
    folder, sources=(), mix=str(tmp_path / 'mix.json'), anneal_at=1.0
  )
  assert tasks.rows(experiment).shares.tolist() == [0.5, 0.5]


def test_an_ablations_runs_have_the_sources_of_a_mix_json(folder, tmp_path):
  sources = _experiment(folder).data.sources
  mix_file.write(tmp_path / 'mix.json', sources, {})
  argument = f'--config.data.mix={tmp_path / "mix.json"}'
  found = ablate.resolve('experiments/configs/tiny.py:f32', [argument])
  assert found.data.sources == sources and found.data.mix == ''
