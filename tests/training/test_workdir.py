"""A workdir belongs to one experiment and to one process."""

import copy
import json
import pathlib
import subprocess
import sys

import pytest

from kaiju_jax.experiments.configs import tiny
from kaiju_jax.training import checkpoint
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir

_HOLD = """
import fcntl, os, sys, time
file = open(sys.argv[1], 'a+')
fcntl.lockf(file, fcntl.LOCK_EX)
file.truncate(0)
file.write(str(os.getpid()))
file.flush()
print('held', flush=True)
time.sleep(60)
"""


def _snapshot(folder):
  return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def test_the_config_comes_back_typed(tmp_path):
  experiment = experiment_lib.Experiment(seed=3)
  experiment.model.rope_global = 0.0
  experiment.optimizer.learning_rate = 1
  with workdir.open_workdir(tmp_path / 'a' / 'b', experiment) as folder:
    read = workdir.load_experiment(folder)
  assert read == experiment
  assert type(read.optimizer.learning_rate) is float
  text = (folder / 'config.json').read_text()
  assert list(json.loads(text)) == sorted(json.loads(text))


def test_a_run_of_the_first_fields_is_read_and_goes_on(tmp_path):
  """Each field that was added since has the default that it means."""
  text = (pathlib.Path(__file__).parent / 'first_config.json').read_text()
  (tmp_path / 'config.json').write_text(text)
  found = workdir.load_experiment(tmp_path)
  assert found == tiny.get_config('bf16')
  with workdir.open_workdir(tmp_path, found):
    pass


def test_each_start_is_noted_and_the_latest_is_on_top(tmp_path):
  experiment = experiment_lib.Experiment()
  for _ in range(3):
    with workdir.open_workdir(tmp_path, experiment) as folder:
      workdir.note_start(folder, experiment, 0)
  noted = json.loads((tmp_path / 'environment.json').read_text())
  assert {'python', 'jax', 'jaxlib', 'flax', 'optax', 'grain'} <= set(noted)
  assert noted['orbax-checkpoint'] and noted['date']
  assert noted['devices'][0]['count'] >= 1
  assert len(noted['earlier']) == 2
  assert 'earlier' not in noted['earlier'][0]


def test_another_experiment_is_refused_field_by_field(tmp_path):
  folder = tmp_path / 'run'
  with workdir.open_workdir(folder, experiment_lib.Experiment()):
    pass
  (tmp_path / 'run-2').mkdir()
  before = _snapshot(folder)
  other = experiment_lib.Experiment()
  other.model.window = 64
  other.optimizer.z_reg.attention = 0.0
  for refuse in (
    workdir.check,
    lambda *a: workdir.open_workdir(*a).__enter__(),
  ):
    with pytest.raises(ValueError, match='another experiment') as error:
      refuse(folder, other)
    text = str(error.value)
    assert 'model.window: 128 in the workdir, 64 in this command' in text
    assert 'optimizer.z_reg.attention: 0.001 in the workdir, 0.0 in' in text
    assert text.count('in the workdir') == 2
    assert f'--workdir={folder}-3' in text
  assert _snapshot(folder) == before


def test_a_run_of_text_goes_on_in_a_token_store(tmp_path):
  folder, one = tmp_path / 'run', experiment_lib.Experiment()
  one.data.path = str(tmp_path / 'texts')
  with workdir.open_workdir(folder, one):
    pass
  other = copy.deepcopy(one)
  other.data.path = str(tmp_path / 'store')
  (tmp_path / 'store').mkdir()
  position = folder / 'checkpoints/3/data/metadata'
  position.parent.mkdir(parents=True)
  position.write_text('{"row": 6, "text": {}}')
  with pytest.raises(ValueError, match=r'data\.path: .*in the workdir'):
    workdir.check(folder, other)  # It is no store.
  (tmp_path / 'store/token_store.json').write_text('{}')
  (folder / 'checkpoints/4').mkdir()  # Nothing can be read of it.
  with workdir.open_workdir(folder, other) as path:
    workdir.note_start(path, other, 3)
  workdir.check(folder, one)
  other.data.held_out = 0.5
  with pytest.raises(ValueError, match=r'data\.held_out: ') as error:
    workdir.check(folder, other)
  assert 'data.path' not in str(error.value)
  # Without a checkpoint, or by an older one, nothing says what the text was.
  for older in (lambda: position.write_text('{"row": 6}'), position.unlink):
    older()
    with pytest.raises(ValueError, match=r'data\.path: .*in the workdir'):
      workdir.check(folder, other)


@pytest.mark.parametrize(
  'path', ['gs://bucket/runs', 's3://b', 'FILE:///tmp/runs', 'x-y+1.z://a']
)
def test_an_address_is_no_folder(path, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  refusals = (
    workdir.check,
    lambda *a: workdir.reserve(*a).__enter__(),
    lambda path, _: workdir.load_experiment(path),
    lambda path, _: checkpoint.load(path, {}),
  )
  for refuse in refusals:
    with pytest.raises(ValueError, match=r'is an address.*Mount') as error:
      refuse(path, experiment_lib.Experiment())
    assert f'workdir {path}: ' in str(error.value)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('path', ['gs:/a', 'a/b://c', '/gs://a', '1a://b'])
def test_a_folder_may_have_colons(path, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  workdir.check(path, experiment_lib.Experiment())


def _rename_heads(model):
  model['heads'] = model.pop('num_heads')


@pytest.mark.parametrize(
  ('change', 'differs', 'refused'),
  [
    (_rename_heads, r'heads: 4 in the work', 'heads: no such'),
    # As it was once written for no rotary angles.
    (
      lambda model: model.update(rope_global=None),
      'rope_global: None in the work',
      'rope_global=None: must be flo',
    ),
  ],
)
def test_a_config_of_other_code_is_refused(tmp_path, change, differs, refused):
  experiment = experiment_lib.Experiment()
  experiment.model.rope_global = 0.0
  with workdir.open_workdir(tmp_path, experiment):
    pass
  file = tmp_path / 'config.json'
  data = json.loads(file.read_text())
  change(data['model'])
  file.write_text(json.dumps(data))
  with pytest.raises(ValueError, match=rf'model\.{differs}'):
    workdir.check(tmp_path, experiment)
  with pytest.raises(ValueError, match=rf'config\.json: model\.{refused}'):
    workdir.load_experiment(tmp_path)


def test_bad_folders_are_named(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'config\.json: not found'):
    workdir.load_experiment(tmp_path)
  (tmp_path / 'config.json').write_text('{"model": ')
  for read in (
    lambda: workdir.load_experiment(tmp_path),
    lambda: workdir.check(tmp_path, experiment_lib.Experiment()),
  ):
    with pytest.raises(ValueError, match=r'config\.json: not valid JSON'):
      read()
  with pytest.raises(ValueError, match='is a file'):
    workdir.check(tmp_path / 'config.json', experiment_lib.Experiment())
  (tmp_path / 'old' / 'checkpoints').mkdir(parents=True)
  with pytest.raises(ValueError, match=r'checkpoints, but no config\.json'):
    workdir.check(tmp_path / 'old', experiment_lib.Experiment())


def test_an_ill_typed_experiment_leaves_no_folder(tmp_path):
  experiment = experiment_lib.Experiment()
  experiment.model.window = '64'
  with (
    pytest.raises(ValueError, match=r"model\.window='64': must be int"),
    workdir.open_workdir(tmp_path / 'run', experiment),
  ):
    pass
  assert not (tmp_path / 'run').exists()


def test_one_process_at_a_time_and_a_dead_one_does_not_count(tmp_path):
  with workdir.open_workdir(tmp_path, experiment_lib.Experiment()):
    pass
  holder = subprocess.Popen(
    [sys.executable, '-c', _HOLD, tmp_path / 'lock'], stdout=subprocess.PIPE
  )
  try:
    assert holder.stdout.readline() == b'held\n'
    with (
      pytest.raises(BlockingIOError, match=f'process {holder.pid} trains here'),
      workdir.open_workdir(tmp_path, experiment_lib.Experiment()),
    ):
      pass
  finally:
    holder.kill()
    holder.wait()
    holder.stdout.close()
  with workdir.open_workdir(tmp_path, experiment_lib.Experiment()):
    pass


def test_a_reserved_folder_is_locked_and_leaves_nothing_behind(tmp_path):
  folder = tmp_path / 'a' / 'b'
  lock = (
    'import fcntl, sys; fcntl.lockf(open(sys.argv[1], "a+"),'
    ' fcntl.LOCK_EX | fcntl.LOCK_NB)'
  )
  with workdir.reserve(folder, experiment_lib.Experiment()):
    call = [sys.executable, '-c', lock, str(folder / 'lock')]
    assert b'BlockingIOError' in subprocess.run(call, stderr=-1).stderr
    assert [path.name for path in folder.iterdir()] == ['lock']
  assert not list(tmp_path.iterdir())
  # What it is reserved for stays, and so does a folder that was there before.
  with (
    workdir.reserve(folder, experiment_lib.Experiment()),
    workdir.open_workdir(folder, experiment_lib.Experiment()),
  ):
    pass
  assert (folder / 'config.json').exists()
  (tmp_path / 'old').mkdir()
  with workdir.reserve(tmp_path / 'old', experiment_lib.Experiment()):
    pass
  assert (tmp_path / 'old').exists()


@pytest.mark.parametrize(
  'here, name', [('run', '.'), ('run/sub', '..'), ('run', '../run')]
)
def test_a_folder_by_its_place_gets_a_name_for_another(
  tmp_path, monkeypatch, here, name
):
  (tmp_path / 'run' / 'sub').mkdir(parents=True)
  monkeypatch.chdir(tmp_path / here)
  with workdir.open_workdir(name, experiment_lib.Experiment()):
    pass
  assert (tmp_path / 'run' / 'config.json').exists()
  with pytest.raises(ValueError, match=r'--workdir=\S*/run-2$'):
    workdir.check(name, experiment_lib.Experiment(seed=1))


def test_checking_imports_no_jax():
  code = (
    'import sys; from kaiju_jax.training import workdir;'
    "sys.exit('jax' in sys.modules)"
  )
  assert subprocess.run([sys.executable, '-c', code]).returncode == 0
