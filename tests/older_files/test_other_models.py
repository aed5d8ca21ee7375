"""Numbers that another model made are refused where a run or a server starts.

The files are older, so that they also say what a file without a digest means.
"""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from kaiju_jax.classifiers import heads
from kaiju_jax.data import choices
from kaiju_jax.data import same_text
from kaiju_jax.model import token_head
from kaiju_jax.runs import begin
from kaiju_jax.runs import exchange
from kaiju_jax.runs import load
from kaiju_jax.runs import reference
from kaiju_jax.runs import train
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.tasks import registry
from kaiju_jax.training import workdir


@pytest.fixture
def preferring(here):
  experiment = workdir.load_experiment('runs/preference')
  assert experiment.begin_with == 'runs/chat'
  return experiment


def write_reference(model):
  held = choices.read_reference('reference.npz')
  choices.write_reference('reference.npz', held._replace(model=model))


def test_a_reference_of_another_model_is_refused(preferring):
  write_reference('0' * 32)
  message = (
    r"data\.reference='reference\.npz': was not made by the model of"
    r" begin_with='runs/chat'.*experiments\.align --model=runs/chat"
  )
  with pytest.raises(ValueError, match=message):
    train.train(preferring, 'runs/new')
  assert not pathlib.Path('runs/new').exists()


def test_a_model_and_its_export_are_one_reference(preferring, here):
  exchange.export('runs/chat', 'exported', 'kaiju')
  for path in 'runs/chat', 'exported':
    write_reference(load.digest(load.from_anywhere(path)))
    reference.check_start(preferring)
  other = load.from_anywhere('runs/plain')
  write_reference(load.digest(other))
  with pytest.raises(ValueError, match='was not made by the model'):
    reference.check_start(preferring)
  preferring.begin_with = ''
  with pytest.raises(ValueError, match=r"begin_with=''.*and set begin_with"):
    reference.check_start(preferring)


def test_a_run_begins_with_one_that_has_the_same_reference(preferring):
  write_reference('1' * 32)
  shutil.copy('reference.npz', 'next.npz')
  preferring.begin_with = 'runs/preference'
  preferring.data.reference = 'next.npz'
  reference.check_start(preferring)
  write_reference('2' * 32)
  with pytest.raises(ValueError, match='was not made by the model'):
    reference.check_start(preferring)


def test_a_run_goes_on_beside_its_own_teacher_alone(here):
  """The older run has no digest: it gets one."""
  experiment = workdir.load_experiment('runs/aligned')
  mesh = mesh_lib.single()
  for _ in range(2):
    begin.read_teacher(experiment, 'runs/aligned', mesh)
  teacher = pathlib.Path(experiment.objective.attention_alignment.teacher)
  written = json.loads(pathlib.Path('runs/aligned/teacher.json').read_text())
  assert written['digest'] == load.digest(load.from_anywhere(teacher))
  pathlib.Path('runs/aligned/teacher.json').write_text(
    json.dumps({**written, 'digest': '0' * 32})
  )
  with pytest.raises(ValueError, match=r'is another teacher than .*not 0000'):
    begin.read_teacher(experiment, 'runs/aligned', mesh)
  # Where nothing is saved yet, the run begins anew.
  (here / 'fresh').mkdir()
  begin.read_teacher(experiment, here / 'fresh', mesh)
  kept = here / 'fresh' / 'teacher.json'
  kept.write_text(json.dumps({**written, 'digest': '0' * 32}))
  begin.read_teacher(experiment, here / 'fresh', mesh)
  assert json.loads(kept.read_text())['digest'] == written['digest']


@pytest.mark.parametrize('field', ['teacher', 'draws', 'length', 'shard'])
def test_a_run_goes_on_with_its_own_targets_alone(here, field):
  experiment = workdir.load_experiment('runs/student')
  task = registry.task_of(experiment)
  saved = task.load(experiment).text
  same_text.check(saved, task.load(experiment).text)
  file = pathlib.Path(experiment.data.teacher) / 'manifest.json'
  manifest = json.loads(file.read_text())
  settings = manifest['settings']
  holder = settings if field in settings else settings['sampling']
  before = holder[field]
  holder[field] = '0' * 32 if field == 'teacher' else before + 1
  file.write_text(json.dumps(manifest))
  found = {
    '': {**saved[''], 'teacher': registry.targets.hash_store(experiment)}
  }
  if field == 'shard':  # The same targets in other files.
    same_text.check(saved, found)
  else:
    with pytest.raises(ValueError, match=r'data\.teacher: holds targets of'):
      same_text.check(saved, found)
  older = {'': {k: v for k, v in saved[''].items() if k != 'teacher'}}
  same_text.check(older, found)


def test_a_head_is_for_the_model_that_it_was_trained_on(here):
  params, config = token_head.load('safety/head.safetensors')
  exchange.export('runs/chat', 'exported', 'kaiju')
  loaded = load.from_anywhere('runs/chat')
  models = heads.list_digests('runs/chat', loaded)
  token_head.save('head.safetensors', params, config, models)
  d_model = len(params['w_DC'])
  for path in 'runs/chat', 'exported':
    digest = heads.digest(load.from_anywhere(path))
    found, _ = heads.load('head.safetensors', d_model, digest)
    np.testing.assert_array_equal(found['w_DC'], params['w_DC'])
  other = loaded._replace(params=jax.tree.map(lambda x: 2 * x, loaded.params))
  with pytest.raises(ValueError, match='hidden states of another model'):
    heads.load('head.safetensors', d_model, heads.digest(other))
  # So is a run's, which trained behind this model.
  heads.load('runs/spans', 32, heads.digest(loaded))
  with pytest.raises(ValueError, match='runs/spans: its head reads'):
    heads.load('runs/spans', 32, heads.digest(other))
  # An older file has no digest, and is for any model.
  heads.load('safety/head.safetensors', d_model, heads.digest(other))
