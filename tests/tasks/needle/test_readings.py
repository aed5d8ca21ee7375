"""What a needle run reads along its training."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.configs import induction as config
from experiments.configs import needle as needle_config
from kaiju_jax.data import packing
from kaiju_jax.model import layers
from kaiju_jax.runs import train
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.tasks.needle import curriculum
from kaiju_jax.tasks.needle import readings
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import token_count

STAGES = curriculum.CURRICULA['few_keys']


def test_unseen_rows_are_of_the_same_stage_and_of_another_seed():
  rows = curriculum.Rows(160, seed=3)
  unseen = rows.unseen()
  for row in 0, 159:
    assert unseen.stage(row) is rows.stage(row)
    assert np.any(unseen[row].tokens != rows[row].tokens)


def small():
  experiment = config.get_config('shared')
  model = experiment.model
  model.layout, model.d_model, model.d_ff = 'L0 G1', 16, 16
  model.num_heads, model.head_dim = 2, 8
  model.attention = 'reference'
  return experiment


class Copies:
  """A model that says each token's successor, or its own token."""

  def __init__(self, ahead):
    self._ahead = ahead

  def apply(self, variables, tokens_BL, visibility):
    return jax.nn.one_hot(jnp.roll(tokens_BL, -self._ahead, axis=1), 256)


def test_answers_in_unseen_rows_are_read_where_they_are_predicted():
  rows = curriculum.Rows(160, length=64, curriculum=STAGES)
  batch = packing.stack([rows[0], rows[1]])
  assert float(readings._right(Copies(1))({}, batch)) == 1.0
  assert float(readings._right(Copies(0))({}, batch)) == 0.0


@pytest.mark.slow
def test_a_run_that_evaluates_reads_answers_and_heads():
  experiment = small()
  model = state_lib.model_of(experiment)
  params = state_lib.init_params(model, 0)
  evaluate = tasks.TASKS['needle'].load(experiment).evaluator(model, None)
  start = types.SimpleNamespace(params=params, tokens=token_count.start())
  readings = evaluate(start)
  assert set(readings) == {
    'accuracy', 'answered', 'previous_0', 'previous_1', 'match_0', 'match_1'
  }  # fmt: skip
  assert all(0 <= reading <= 1 for reading in readings.values())
  assert readings['accuracy'] < 0.2 and readings['answered'] < 0.2
  experiment.loop.evaluate_every = 0
  assert tasks.TASKS['needle'].load(experiment).evaluator is None


def test_arms_are_what_they_name_and_can_run():
  drawn = {}
  for arm in config.ARMS:
    experiment = config.get_config(arm)
    train.check(experiment)
    drawn[arm] = layers.draw(experiment.model.layers())
  assert {arm: drawn[arm] for arm in config.LAYOUTS} == config.LAYOUTS
  shared = {arm for arm in drawn if drawn[arm] == config.LAYOUTS['shared']}
  assert shared == {
    'shared', 'keys', 'values', 'scaled', 'previous',
    'kaiju', 'kaiju_float', 'kaiju_unclamped', 'kaiju_no_z',
  }  # fmt: skip
  with pytest.raises(ValueError, match="arm='x': must be one of interleaved"):
    config.get_config('x')


def test_the_shifted_needle_is_kaiju_in_another_layout():
  shifted = needle_config.get_config('shifted_standard')
  assert layers.draw(shifted.model.layers()) == config.LAYOUTS['shifted']
  shifted.model.layout = ''
  assert shifted == needle_config.get_config('kaiju_standard')


@pytest.mark.parametrize('kind', ['interleaved', 'kaiju'])
def test_an_arm_changes_one_thing(kind):
  whole = _settings(config.get_config(kind))
  for arm in config.TECHNIQUES:
    if arm.startswith(f'{kind}_'):
      changed = _settings(config.get_config(arm)) - whole
      assert len({name.split('.')[0] for name, _ in changed}) == 1, changed


def _settings(experiment):
  """Returns {(name, value)}; names of one technique begin alike."""
  found = {('layout', layers.draw(experiment.model.layers()))}
  for holder, names in (
    (experiment.model.quantization, ('int8.matmul', 'int8.kv', 'int8.qk')),
    (experiment.model.quantization, ('clamp.hidden', 'clamp.input')),
    (experiment.optimizer.z_reg, ('z.attention', 'z.logits')),
  ):
    for name in names:
      field = name.replace('clamp.', 'clamp_').rpartition('.')[2]
      found.add((name, getattr(holder, field)))
  return found


def test_a_curriculum_is_named_and_only_for_pairs():
  experiment = small()
  experiment.data.curriculum = 'x'
  with pytest.raises(ValueError, match=r"data\.curriculum='x': .*'few_keys'"):
    train.check(experiment)
  experiment.data.curriculum, experiment.data.task = 'few_keys', 'needle_text'
  with pytest.raises(ValueError, match=r"data\.curriculum='few_keys': must be"):
    train.check(experiment)
