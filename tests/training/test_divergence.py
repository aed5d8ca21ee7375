"""A run whose numbers are lost ends, and keeps its last finite checkpoint."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.training import checkpoint
from kaiju_jax.training import divergence
from kaiju_jax.training import workdir
from kaiju_jax.training.records import metrics
from tests.training import toy

_STEPS = 12
_SOUND = toy.make_step()


@jax.jit
def _lose(state):
  return state.replace(params=jax.tree.map(lambda x: x * jnp.nan, state.params))


class Planted:
  """A step that reports and leaves what is not finite, and counts its calls.

  Args:
    reported: {step: the loss that it reports}.
    lost: the step behind which all parameters are NaN.
    name: the metric that is replaced.
  """

  def __init__(self, reported=(), lost=None, name='loss'):
    self._reported, self._lost, self._name = dict(reported), lost, name
    self.last = 0

  def __call__(self, state, batch):
    self.last = int(state.step) + 1
    state, values = _SOUND(state, batch)
    if self.last == self._lost:
      state = _lose(state)
    if self.last in self._reported:
      values = {**values, self._name: jnp.float32(self._reported[self.last])}
    return state, values | {'learning_rate': jnp.float32(0.01)}


def _is_finite(state):
  return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def _saved(folder):
  """Returns {step: whether its parameters are finite} of all checkpoints."""
  steps = [int(one.name) for one in (folder / 'checkpoints').glob('[0-9]*')]
  return {
    step: _is_finite(checkpoint.load_step(folder, toy.initial(), step)[0])
    for step in steps
  }


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  folder = tmp_path_factory.mktemp('whole')
  made = toy.experiment(_STEPS, evaluate_every=0)
  state = toy.train(folder, made, step=_SOUND, evaluate=None)
  return state, metrics.read(folder)


def _places():
  """Draws (step that loses all, checkpoint_every), and each exact boundary."""
  rng = np.random.default_rng(0)
  drawn = [map(int, rng.integers(1, (13, 7))) for _ in range(3)]
  return [*map(tuple, drawn), (1, 1), (4, 4), (5, 4), (11, 4), (12, 4)]


@pytest.mark.parametrize(('lost', 'every'), _places())
def test_lost_parameters_end_the_run_at_its_last_finite_checkpoint(
  tmp_path, whole, lost, every
):
  """The gradient is NaN at step `lost`, whose loss is finite."""
  made = toy.experiment(_STEPS, checkpoint_every=every, evaluate_every=0)
  planted = Planted(lost=lost)
  with pytest.raises(divergence.Diverged) as error:
    toy.train(tmp_path, made, step=planted, evaluate=None)
  kept = (lost - 1) // every * every
  is_due = lost % every == 0 or lost == _STEPS
  found = lost if is_due else lost + 1
  assert error.value.step == found == workdir.find_divergence(tmp_path)
  assert planted.last <= found + divergence.STEPS
  latest = {kept - every, kept} if kept else set()
  assert _saved(tmp_path) == dict.fromkeys(latest - {0}, True)
  text = str(error.value)
  assert f'diverged at step {found}: ' in text
  if kept:
    assert f'of step {kept}, is kept' in text
    assert f'--config.loop.branch={tmp_path}@{kept} ' in text
  else:
    assert 'No checkpoint was saved before it' in text

  state = toy.train(tmp_path, made, step=_SOUND, evaluate=None)
  jax.tree.map(np.testing.assert_array_equal, state, whole[0])
  assert [r['loss'] for r in metrics.read(tmp_path)] == [
    r['loss'] for r in whole[1]
  ]
  assert workdir.find_divergence(tmp_path) is None


@pytest.mark.parametrize('name', ['loss', 'grad_norm'])
@pytest.mark.parametrize('seed', range(4))
def test_only_a_succession_of_lost_values_ends_a_run(
  tmp_path, whole, capfd, name, seed
):
  """The parameters stay finite: a run goes on behind one or two such steps."""
  rng = np.random.default_rng(seed)
  lost = rng.random(_STEPS) < 0.5
  value = [np.nan, np.inf, -np.inf][seed % 3]
  reported = {n: value for n, one in enumerate(lost, 1) if one}
  marks = ''.join('x' if one else '.' for one in lost)
  expected = re.search('x' * divergence.STEPS, marks)
  made = toy.experiment(_STEPS, evaluate_every=0, log_every=5)
  arguments = dict(step=Planted(reported, name=name))
  if expected is None:
    state = toy.train(tmp_path, made, **arguments)
    jax.tree.map(np.testing.assert_array_equal, state, whole[0])
  else:
    with pytest.raises(divergence.Diverged) as error:
      toy.train(tmp_path, made, **arguments)
    assert error.value.step == expected.start() + 1
    assert f'{name} is {value} at that step and the 2 steps after it' in str(
      error.value
    )
    assert 'learning rate 0.01' in str(error.value)
  assert all(_saved(tmp_path).values())
  said = capfd.readouterr().err
  begun = [m.start() + 1 for m in re.finditer(r'(?<!x)x', marks)]
  if expected is not None:
    begun = [n for n in begun if n <= expected.start() + 1]
  assert [int(n) for n in re.findall(rf'step (\d+): {name} is', said)] == begun


def test_an_evaluation_without_a_number_ends_nothing(tmp_path):
  made = toy.experiment(_STEPS)
  state = toy.train(tmp_path, made, evaluate=lambda _: {'loss': float('nan')})
  assert int(state.step) == _STEPS
  assert workdir.find_divergence(tmp_path) is None


def test_a_stop_never_saves_what_is_lost(tmp_path):
  with pytest.raises(divergence.Diverged):
    toy.train(tmp_path, step=Planted(lost=6), until=6)
  assert _saved(tmp_path) == {4: True}
  found = json.loads((tmp_path / workdir.DIVERGED).read_text())
  assert (found['step'], found['checkpoint']) == (6, 4)


def test_a_lost_checkpoint_of_an_older_version_is_left_aside(
  tmp_path, monkeypatch, capfd
):
  with monkeypatch.context() as older:
    older.setattr(checkpoint.fingerprint, '_NOT_FINITE', '')
    older.setattr(checkpoint.fingerprint, 'list_nonfinite', lambda _: [])
    older.setattr(divergence, 'STEPS', 100)
    toy.train(tmp_path, toy.experiment(8), step=Planted(lost=6))
  names = {one.name for one in (tmp_path / 'checkpoints').iterdir()}
  assert names == {'4', '8'}
  toy.train(tmp_path, toy.experiment(8), step=_SOUND)
  assert re.search('Checkpoint 8 .* hold NaN', capfd.readouterr().err)
  assert _saved(tmp_path) == {4: True, 8: True}
