"""A checkpoint is whole, or the one before it is taken; none is lost."""

import contextlib
import json
import os
import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.training import checkpoint
from tests.training import toy

pytestmark = pytest.mark.versions


def _state(seed=0, size=30_000):
  w_D = jax.random.normal(jax.random.key(seed), (size,))
  return {
    'step': jnp.int32(seed),
    'params': {'w_D': w_D, 'gain': jnp.ones(3, jnp.bfloat16)},
    'moments': (jnp.zeros(size), ()),
  }


def _batches(index=0):
  batches = toy.Batches()
  batches.index = index
  return batches


def _save(folder, *steps, kept=2):
  with checkpoint.Checkpoints(folder, kept) as checkpoints:
    for step in steps:
      checkpoints.save(step, _state(step), _batches(10 * step))


def _restore(folder):
  """Returns the state, the step, the data's position and what was said."""
  said, batches = [], _batches()
  with checkpoint.Checkpoints(folder, 2, said.append) as checkpoints:
    state, step = checkpoints.restore(_state(), batches)
  return state, step, batches.index, said


def _assert_is(state, seed):
  jax.tree.map(np.testing.assert_array_equal, state, _state(seed))


def _steps(folder):
  return sorted(int(path.name) for path in (folder / 'checkpoints').iterdir())


@contextlib.contextmanager
def _full_disk(most=50_000):
  """Writing past `most` bytes of any file fails, as on a full disk."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_nothing_saved_restores_what_was_given(tmp_path):
  given = _state(3)
  with checkpoint.Checkpoints(tmp_path, 2) as checkpoints:
    state, step = checkpoints.restore(given, _batches())
  assert state is given and step == 0


def test_the_latest_comes_back_bit_for_bit_and_the_latest_are_kept(tmp_path):
  _save(tmp_path, 4, 8, 12)
  state, step, index, said = _restore(tmp_path)
  assert (step, index, said) == (12, 120, [])
  _assert_is(state, 12)
  assert _steps(tmp_path) == [8, 12]
  _save(tmp_path, 12)  # Saved already: left as it is.
  _assert_is(_restore(tmp_path)[0], 12)


def test_restoring_frees_what_was_given(tmp_path):
  _save(tmp_path, 4)
  given = _state()
  with checkpoint.Checkpoints(tmp_path, 2) as checkpoints:
    checkpoints.restore(given, _batches())
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))


def test_the_sharding_of_the_given_state_is_kept(tmp_path):
  if jax.device_count() < 8:
    pytest.skip('needs 8 devices')
  _save(tmp_path, 4)
  mesh = jax.sharding.Mesh(np.array(jax.devices()), ('fsdp',))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('fsdp'))
  given = jax.tree.map(
    lambda x: jax.device_put(x, split if x.size == 30_000 else sharding),
    _state(),
  )
  with checkpoint.Checkpoints(tmp_path, 2) as checkpoints:
    state, _ = checkpoints.restore(given, _batches())
  assert state['params']['w_D'].sharding == split
  _assert_is(state, 4)


def test_donation_while_a_save_is_under_way_does_not_reach_it(tmp_path):
  size = 2_000_000
  wanted = jax.device_get(_state(1, size))
  clear = jax.jit(
    lambda state: jax.tree.map(jnp.zeros_like, state), donate_argnums=0
  )
  with checkpoint.Checkpoints(tmp_path, 2) as checkpoints:
    state = _state(1, size)
    checkpoints.save(1, state, _batches())
    for _ in range(3):
      state = clear(state)
    jax.block_until_ready(state)
  restored, _ = checkpoint.load(tmp_path, _state(0, size))
  jax.tree.map(np.testing.assert_array_equal, restored, wanted)


def _largest(folder):
  files = [path for path in folder.rglob('*') if path.is_file()]
  return max(files, key=lambda path: path.stat().st_size)


def _flip(folder):
  """A bit in the middle of the compressed arrays; Orbax does not notice."""
  file = _largest(folder / 'state')
  data = bytearray(file.read_bytes())
  data[len(data) // 2] ^= 0x10
  file.write_bytes(data)


def _halve(folder):
  file = _largest(folder / 'state')
  os.truncate(file, file.stat().st_size // 2)


def _redirect_data(folder):
  file = folder / 'data' / 'metadata'
  file.write_text(file.read_text().replace('120', '121'))


_DAMAGES = {
  'a flipped bit': _flip,
  'half a file': _halve,
  'no arrays': lambda folder: shutil.rmtree(folder / 'state'),
  'no fingerprint': lambda folder: shutil.rmtree(folder / 'fingerprint'),
  'no metadata': lambda folder: (folder / 'state' / '_METADATA').unlink(),
  'another position of the data': _redirect_data,
  'an empty folder': lambda folder: [
    shutil.rmtree(folder),
    folder.mkdir(),
  ],
}


@pytest.mark.parametrize('damage', _DAMAGES.values(), ids=_DAMAGES.keys())
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, damage):
  _save(tmp_path, 4, 8, 12)
  damage(tmp_path / 'checkpoints' / '12')
  state, step, index, said = _restore(tmp_path)
  assert (step, index) == (8, 80)
  _assert_is(state, 8)
  (told,) = said
  assert 'Checkpoint 12 cannot be read (' in told
  assert 'going on from checkpoint 8' in told
  assert (tmp_path / 'bad_checkpoints' / '12.0').is_dir()
  assert _steps(tmp_path) == [8]
  _save(tmp_path, 12)
  assert _restore(tmp_path)[1] == 12


def test_a_step_can_go_bad_twice(tmp_path):
  for _ in range(2):
    _save(tmp_path, 4, 8)
    _flip(tmp_path / 'checkpoints' / '8')
    with checkpoint.Checkpoints(tmp_path, 2) as checkpoints:
      assert checkpoints.restore(_state(), _batches())[1] == 4
      checkpoints.save(8, _state(8), _batches())
    assert _restore(tmp_path)[1] == 8
  bad = {path.name for path in (tmp_path / 'bad_checkpoints').iterdir()}
  assert bad == {'8.0', '8.1'}


def test_where_none_can_be_read_all_stay_and_each_is_named(tmp_path):
  _save(tmp_path, 4, 8)
  for step in ('4', '8'):
    _flip(tmp_path / 'checkpoints' / step)
  with pytest.raises(checkpoint.RestoreError) as error:
    _restore(tmp_path)
  text = str(error.value)
  assert '  8: ' in text and '  4: ' in text and str(tmp_path) in text
  assert _steps(tmp_path) == [4, 8]
  assert not (tmp_path / 'bad_checkpoints').exists()


def test_another_model_is_no_reason_to_move_checkpoints(tmp_path):
  _save(tmp_path, 4, 8)
  with checkpoint.Checkpoints(tmp_path, 2) as checkpoints:
    for other in (
      _state(0, 10),
      _state() | {'more': jnp.ones(2)},
      jax.tree.map(lambda x: x.astype(jnp.float32), _state()),
    ):
      with pytest.raises(checkpoint.RestoreError):
        checkpoints.restore(other, _batches())
  assert _restore(tmp_path)[1] == 8


def test_a_save_that_was_cut_off_does_not_count(tmp_path):
  _save(tmp_path, 4)
  half = tmp_path / 'checkpoints' / '7.orbax-checkpoint-tmp'
  shutil.copytree(tmp_path / 'checkpoints' / '4', half)
  _, step, _, said = _restore(tmp_path)
  assert step == 4 and said == [
    'The save of step 7 was cut off; it does not count.'
  ]
  _save(tmp_path, 8)
  names = {path.name for path in (tmp_path / 'checkpoints').iterdir()}
  assert names == {'4', '8'}, 'what is cut off must not pile up'


@pytest.mark.parametrize('notice', ['wait', 'check', 'save', 'leave'])
def test_a_full_disk_names_step_reason_and_the_last_good(tmp_path, notice):
  first = pytest.raises(checkpoint.SaveError, match='no earlier checkpoint')
  with first, _full_disk(0):
    _save(tmp_path, 8, kept=1)
  _save(tmp_path, 4, kept=1)
  with (
    pytest.raises(checkpoint.SaveError) as error,
    _full_disk(),
    checkpoint.Checkpoints(tmp_path, 1) as checkpoints,
  ):
    checkpoints.save(8, _state(8), _batches())
    if notice == 'check':
      while True:
        checkpoints.check()
    if notice == 'wait':
      checkpoints.wait()
    if notice == 'save':
      checkpoints.save(12, _state(12), _batches())
  text = str(error.value)
  assert text.startswith('Saving step 8 failed: File too large.')
  assert 'last good checkpoint, of step 4,' in text
  assert _steps(tmp_path) == [4], 'half a save still fills the disk'
  _assert_is(_restore(tmp_path)[0], 4)
  _save(tmp_path, 8)
  assert _restore(tmp_path)[1] == 8


def test_load_reads_without_touching(tmp_path):
  with pytest.raises(FileNotFoundError, match='nothing was saved yet'):
    checkpoint.load(tmp_path, _state())
  _save(tmp_path, 4, 8)
  _flip(tmp_path / 'checkpoints' / '8')
  half = tmp_path / 'checkpoints' / '12.orbax-checkpoint-tmp'
  half.mkdir()
  state, step = checkpoint.load(tmp_path, jax.eval_shape(_state))
  assert step == 4
  _assert_is(state, 4)
  names = {path.name for path in (tmp_path / 'checkpoints').iterdir()}
  assert names == {'4', '8', half.name}


def _blur(folder, name):
  """Another fingerprint than the array's: who reads the array notices."""
  file = folder / 'fingerprint' / 'metadata'
  sums = json.loads(file.read_text())
  assert name in sums['state'], sums
  sums['state'][name] = 'another'
  file.write_text(json.dumps(sums))


def test_a_part_is_read_without_the_rest(tmp_path):
  _save(tmp_path, 4, 8)
  _blur(tmp_path / 'checkpoints' / '8', 'moments/0')
  shapes = jax.eval_shape(_state)
  part, step = checkpoint.load(tmp_path, {'params': shapes['params']})
  assert step == 8, "the moments' fingerprint was looked at"
  jax.tree.map(
    np.testing.assert_array_equal, part, {'params': _state(8)['params']}
  )
  assert checkpoint.load(tmp_path, shapes)[1] == 4
  _blur(tmp_path / 'checkpoints' / '8', 'params/w_D')
  assert checkpoint.load(tmp_path, {'params': shapes['params']})[1] == 4


@pytest.mark.parametrize(
  'wanted',
  [
    {'params': {'w_V': jnp.ones(30_000)}},
    {'params': {'w_D': jnp.ones(29_999)}},
    {'params': {'w_D': jnp.ones(30_000, jnp.bfloat16)}},
    {'replica': jnp.ones(3)},
  ],
  ids=['a name', 'a shape', 'a dtype', 'a field'],
)
def test_a_part_that_was_not_saved_is_refused(tmp_path, wanted):
  _save(tmp_path, 4)
  with pytest.raises(checkpoint.RestoreError):
    checkpoint.load(tmp_path, wanted)
