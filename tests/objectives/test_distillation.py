"""The student's loss is the teacher's cross-entropy, on any mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.objectives import config as objective_config
from kaiju_jax.objectives import distillation
from kaiju_jax.objectives import language
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step as step_lib
from tests import meshes
from tests.model import params as params_lib
from tests.model import rows
from tests.objectives import shallow

ROWS, LENGTH, VOCAB, SLOTS = 8, 32, shallow.VOCAB, 40
MIX, TEMPERATURE = 0.25, 2.0
SETTINGS = {'entries': SLOTS, 'mix': MIX, 'temperature': TEMPERATURE}


@functools.cache
def teacher():
  """Distributions of which the first document of each row has none."""
  rng = np.random.default_rng(0)
  logits = 3 * rng.normal(size=(ROWS, LENGTH, VOCAB))
  p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  p[:, :12] = 0
  return p.astype(np.float32)


@functools.cache
def batch(slots=SLOTS):
  """The entries of the last ids, so that m is below 1."""
  drawn = rows.packed_batch([[12, 17]] * ROWS, LENGTH, VOCAB)
  ids = np.broadcast_to(np.arange(VOCAB, dtype=np.int32), teacher().shape)
  extras = {
    'ids_BLT': ids[:, :, VOCAB - slots :].copy(),
    'values_BLT': teacher()[:, :, VOCAB - slots :].copy(),
  }
  return drawn._replace(extras=extras)


def gradient_on(widths, chunk, batch, **settings):
  objective = distillation.make(
    objective_config.Distillation(**settings), LENGTH, chunk
  )
  return shallow.gradient_on(shallow.model(), objective, batch, widths)


@functools.cache
def on_one_device():
  return gradient_on((1, 1), 0, batch(), **SETTINGS)


def logits():
  """The shallow model's logits of what predicts each token, float64."""
  params = shallow.params(shallow.model())
  table = params['embedding']['embedding_DV'].astype(np.float64)
  x = table.T[batch().tokens_BL]
  x = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True))
  behind = batch().predecessor_BL[:, :, None]
  return np.take_along_axis(x, behind, axis=1) @ table


def log_softmax(z):
  return z - np.log(np.exp(z).sum(-1, keepdims=True))


def test_the_loss_is_that_of_float64():
  sums, _ = on_one_device()
  z, q = logits(), teacher().astype(np.float64)
  q[:, :, : VOCAB - SLOTS] = 0
  weight, tokens = batch().weight_BL, batch().tokens_BL
  said = -np.take_along_axis(log_softmax(z), tokens[..., None], -1)[..., 0]
  taught = -(q * log_softmax(z / TEMPERATURE)).sum(-1)
  loss = (1 - MIX) * TEMPERATURE**2 * taught + MIX * said
  loss[:, :12] = said[:, :12]  # No teacher.
  has_teacher = weight * (np.arange(LENGTH) >= 12)
  np.testing.assert_allclose(sums.loss, (weight * loss).sum(), rtol=1e-5)
  assert sums.weight == weight.sum()
  for name, want, by in (
    ('language_loss', weight * said, weight),
    ('teacher_loss', has_teacher * taught, has_teacher),
    ('entries', has_teacher * SLOTS, has_teacher),
  ):
    found, divisor = sums.metrics[name]
    np.testing.assert_allclose(found, want.sum(), rtol=1e-5, err_msg=name)
    assert divisor == by.sum(), name


@pytest.mark.parametrize(
  'widths, chunk',
  [
    ((4, 2), 7),
    *(
      pytest.param(widths, chunk, marks=pytest.mark.slow)
      for widths, chunk in (
        ((8, 1), 7),
        ((2, 4), 7),
        ((1, 8), 7),
        ((1, 8), 0),
      )
    ),
  ],
)
def test_a_mesh_does_not_change_loss_nor_gradient(widths, chunk):
  want_sums, want = on_one_device()
  sums, gradient = gradient_on(widths, chunk, batch(), **SETTINGS)
  for found, expected in zip(jax.tree.leaves(sums), jax.tree.leaves(want_sums)):
    np.testing.assert_allclose(found, expected, rtol=1e-5)
  shallow.assert_close(gradient, want, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('widths', [(8, 1), (2, 4)])
def test_a_transformers_step_is_that_of_one_device(widths):
  one = experiment()

  def gradient(widths):
    mesh = meshes.mesh_of(*widths)
    params = params_lib.drawn(step_lib.model_of(one), mesh)
    of = jax.jit(step_lib.gradient_of(one, mesh))
    z = jnp.float32(1e-2), jnp.float32(1e-3)
    step_batch = batch().map(lambda x: x[None])
    return jax.device_get(of(params, step_batch, 1, *z))

  (sums, found), (want_sums, want) = gradient(widths), gradient((1, 1))
  np.testing.assert_allclose(sums.loss, want_sums.loss, rtol=1e-5)
  shallow.assert_close(found, want, 1e-5)


@pytest.mark.slow
def test_a_teacher_that_is_sure_of_the_data_is_the_data():
  """And mix=1 reads the data alone, whatever the teacher says."""
  some = batch(1)
  sure = {
    'ids_BLT': some.tokens_BL[..., None],
    'values_BLT': np.ones_like(some.extras['values_BLT']),
  }
  want, gradient = shallow.gradient_on(shallow.model(), language.make(), some)
  for mix, rows_ in ((0.0, some._replace(extras=sure)), (1.0, some)):
    found, by = gradient_on((1, 1), 0, rows_, entries=1, mix=mix)
    np.testing.assert_allclose(found.loss, want.loss, rtol=1e-6)
    shallow.assert_close(by, gradient, 1e-5)


def experiment(chunk=0, **changes) -> experiment_lib.Experiment:
  settings = objective_config.Distillation(**SETTINGS | changes)
  return shallow.experiment(
    'distillation', LENGTH, distillation=settings, chunk=chunk
  )


def test_a_batch_without_a_teacher_is_refused():
  one = experiment()
  gradient = step_lib.gradient_of(one, meshes.mesh_of(1))
  params = shallow.params(shallow.model())
  with pytest.raises(
    ValueError, match=r"extras holds \[\]; .* \['ids_BLT', 'values_BLT'\]"
  ):
    gradient(params, batch()._replace(extras=None), 1, 0.0, 0.0)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'mix': 1.5}, r'distillation.mix=1.5: must be in 0…1'),
    ({'mix': -0.1}, r'distillation.mix=-0.1: must be in 0…1'),
    ({'mix': float('nan')}, r'distillation.mix=nan: must be in 0…1'),
    ({'temperature': 0.0}, r'temperature=0.0: must be above 0 and finite'),
    ({'entries': 0}, r'distillation.entries=0: must be at least 1'),
    ({'chunk': -1}, r'objective.chunk=-1: must be at least 1, or 0 for all'),
  ],
)
def test_settings_that_mean_nothing_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    state_lib.objective_of(experiment(**changes))
