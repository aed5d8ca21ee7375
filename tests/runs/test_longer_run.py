"""The same command with more steps goes on, or says how to train longer."""

import json
import re

import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.runs import train
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir as workdir_lib
from tests import records
from tests import toys


def experiment(texts, steps, schedule='constant'):
  made = toys.tiny_experiment(texts, steps)
  made.data.held_out = 0.0
  made.optimizer.schedule, made.optimizer.warmup = schedule, 0.0
  made.loop.checkpoint_every, made.loop.checkpoints_kept = 2, 9
  return made


def trained(folder):
  return [one for one in records.of(folder) if 'loss' in one]


def test_a_longer_command_goes_on_to_the_bits_of_a_longer_run(
  texts, tmp_path, programs, capsys
):
  folder, whole = tmp_path / 'run', tmp_path / 'whole'
  train.train(experiment(texts, 4), folder, programs=programs)
  state = train.train(experiment(texts, 7), folder, programs=programs)
  assert 'going on from step 4 of 7' in capsys.readouterr().err
  toys.assert_equal(
    state, train.train(experiment(texts, 7), whole, programs=programs)
  )
  assert trained(folder) == trained(whole)
  assert workdir_lib.load_experiment(folder) == experiment(texts, 7)
  noted = json.loads((folder / 'environment.json').read_text())
  assert noted['extended'] == {'step': 4, 'loop': {'steps': 4, 'tokens': 0}}
  # By then it is the experiment of the workdir, in whatever way it is said.
  before = (folder / 'config.json').read_bytes()
  train.train(experiment(texts, 7), folder, programs=programs)
  assert 'complete, all 7 steps' in capsys.readouterr().err
  assert (folder / 'config.json').read_bytes() == before
  with pytest.raises(ValueError, match='can be made longer, not shorter'):
    train.train(experiment(texts, 4), folder, programs=programs)


def test_a_run_that_cannot_be_written_to_stays_as_it_was(
  texts, tmp_path, programs, monkeypatch
):
  """An error before the first new step leaves the shorter run."""
  folder = tmp_path / 'run'
  train.train(experiment(texts, 2), folder, programs=programs)
  with monkeypatch.context() as patch:
    patch.setattr(workdir_lib.files, 'write_json', _raise)
    with pytest.raises(OSError, match='full'):
      train.train(experiment(texts, 3), folder, programs=programs)
  assert workdir_lib.load_experiment(folder) == experiment(texts, 2)
  train.train(experiment(texts, 3), folder, programs=programs)
  assert len(trained(folder)) == 3


def _raise(*_):
  raise OSError('the disk is full')


@pytest.mark.slow
@pytest.mark.parametrize('schedule', ['wsd', 'cosine'])
def test_what_cannot_go_on_is_begun_by_the_offered_command(
  schedule, texts, tmp_path, programs
):
  made = experiment(texts, 6, schedule)
  made.optimizer.decay = 0.5
  folder = tmp_path / 'run'
  train.train(made, folder, programs=programs)
  before = {x: x.read_bytes() for x in folder.rglob('*') if x.is_file()}
  made.loop.steps = 10
  with pytest.raises(
    ValueError, match=r'cannot be extended: .*schedule'
  ) as error:
    train.train(made, folder, programs=programs)
  said = str(error.value)
  assert 'loop.steps: 6 in the workdir, 10 in this command' in said
  assert {x: x.read_bytes() for x in folder.rglob('*') if x.is_file()} == before
  share, place, branch = re.findall(
    r'begins at (\S+) of its peak: --workdir=(\S+) --config.loop.branch=(\S+)',
    said,
  )[0]
  made.loop.branch = branch
  train.train(made, place, programs=programs)
  found = trained(tmp_path / 'run-2')
  step = int(branch.rpartition('@')[2])
  # A WSD run goes on as if nothing had happened, from before its decay.
  assert step == (2 if schedule == 'wsd' else 6)
  assert [one['step'] for one in found] == [*range(step + 1, 11)]
  rate = float(share) * made.optimizer.learning_rate
  assert found[0]['learning_rate'] == pytest.approx(rate, rel=1e-2)
  assert float(share) == (1 if schedule == 'wsd' else pytest.approx(0.38, 0.01))


@pytest.mark.slow
def test_a_wsd_run_is_extended_before_its_decay(texts, tmp_path, programs):
  made = experiment(texts, 6, 'wsd')
  made.optimizer.decay = 0.5
  train.train(made, tmp_path / 'run', until=3, programs=programs)
  made.loop.steps = 8
  state = train.train(made, tmp_path / 'run', programs=programs)
  toys.assert_equal(
    state, train.train(made, tmp_path / 'whole', programs=programs)
  )
  assert trained(tmp_path / 'run') == trained(tmp_path / 'whole')


def mixed(texts, steps, anneal_at=1.0, anneal=-1.0):
  """Returns an experiment on two sources."""
  made = experiment(texts, steps)
  made.data.path = ''
  made.data.sources = (
    data_config.SourceConfig('even', str(texts / '*[02468].txt'), 2.0),
    data_config.SourceConfig('odd', str(texts / '*[13579].txt'), 1.0, anneal),
  )
  made.data.anneal_at, made.data.mix_block = anneal_at, 8
  return made


@pytest.mark.parametrize(
  ('anneal_at', 'anneal', 'steps', 'common'),
  [
    *((1.0, -1.0, 12, 24), (1.0, 1.0, 10, 16), (1.0, 3.0, 12, 0)),
    *((0.5, 1.0, 12, 8), (0.5, 1.0, 17, 16), (0.0, 1.0, 9, 0)),
  ],
)
def test_a_mixture_has_common_rows_up_to_its_last_block(
  anneal_at, anneal, steps, common, texts
):
  short, long = (
    mixed(texts, count, anneal_at, anneal) for count in (steps, 3 * steps)
  )
  assert tasks.common_rows(short) == common
  rows = [tasks.rows(one) for one in (short, long)]
  same = [
    np.array_equal(rows[0][n].tokens, rows[1][n].tokens) for n in range(common)
  ]
  assert all(same)
  assert rows[0].account(common) == rows[1].account(common)


@pytest.mark.slow
def test_a_mixture_that_was_cut_within_a_block_begins_anew(
  texts, tmp_path, programs
):
  """Where a block ends with the run, it goes on; a branch would be refused."""
  for steps in 4, 5:
    made, folder = mixed(texts, steps), tmp_path / f'{steps}'
    made.loop.checkpoint_every = steps
    train.train(made, folder, programs=programs)
    made.loop.steps = 9
    if steps == 4:
      assert int(train.train(made, folder, programs=programs).step) == 9
      continue
    with pytest.raises(ValueError, match='has others from row 8 on') as error:
      train.train(made, folder, programs=programs)
    assert 'branch' not in str(error.value)


@pytest.mark.parametrize('task', ['needle', 'recall', 'dialogues'])
def test_tasks_that_spread_their_rows_say_so(task):
  found = []
  for steps in 20, 60:
    made = experiment_lib.Experiment()
    made.data.task, made.data.batch, made.loop.steps = task, 1, steps
    made.data.length = 1024
    assert tasks.common_rows(made) == 0
    rows = tasks.rows(made)
    found.append([rows[n].tokens for n in range(20)])
  assert not all(np.array_equal(*pair) for pair in zip(*found))
