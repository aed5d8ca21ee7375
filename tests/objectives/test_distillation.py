"""The student's loss is the teacher's cross-entropy, on any mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step as step_lib
from tests import meshes
from tests.model import params as params_lib
from tests.model import rows

ROWS, LENGTH, VOCAB = 8, 32, 48


def experiment(chunk=0, **distillation) -> experiment_lib.Experiment:
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=VOCAB, d_model=64, layout='L0', num_heads=8, head_dim=8,
      d_ff=16, max_length=LENGTH, window=5, dtype='float32',
      quantization=quantization_config.none(),
    ),
    data=data_config.DataConfig(length=LENGTH, batch=ROWS),
    objective=objective_config.ObjectiveConfig(
      'distillation',
      distillation=objective_config.Distillation(**distillation),
      chunk=chunk,
    ),
  )  # fmt: skip


@functools.cache
def teacher():
  """Distributions of which the first document of each row has none."""
  rng = np.random.default_rng(0)
  logits = 3 * rng.normal(size=(ROWS, LENGTH, VOCAB))
  p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  p[:, :12] = 0
  return p.astype(np.float32)


@functools.cache
def batch(slots=VOCAB, microbatches=1):
  """All entries; with fewer slots those of the last ids, m below 1."""
  drawn = rows.packed_batch([[12, 17]] * ROWS, LENGTH, VOCAB)
  ids = np.broadcast_to(np.arange(VOCAB, dtype=np.int32), teacher().shape)
  extras = {
    'ids_BLT': ids[:, :, VOCAB - slots :],
    'values_BLT': teacher()[:, :, VOCAB - slots :],
  }
  shape = microbatches, ROWS // microbatches
  return drawn._replace(extras=extras).map(
    lambda x: np.ascontiguousarray(x).reshape(*shape, *x.shape[1:])
  )


def gradient_on(one, widths, batch):
  mesh = meshes.mesh_of(*widths)
  params = params_lib.drawn(step_lib.model_of(one), mesh)
  of = jax.jit(step_lib.gradient_of(one, mesh))
  z = jnp.float32(1e-2), jnp.float32(1e-3)
  return jax.device_get(of(params, batch, 1, *z))


def logits_of(one):
  """The model's logits of what each token is predicted from, float64."""
  model = step_lib.model_of(one)
  params = params_lib.drawn(model)
  rows_BL = batch().map(lambda x: x[0])
  z = jax.jit(model.apply)(
    {'params': params}, rows_BL.tokens_BL, rows_BL.visibility()
  )
  return np.take_along_axis(
    np.asarray(z, np.float64), rows_BL.predecessor_BL[:, :, None], axis=1
  )


@pytest.mark.parametrize(
  'slots, mix, temperature', [(VOCAB, 0.0, 1.0), (40, 0.25, 2.0)]
)
def test_the_loss_is_that_of_float64(slots, mix, temperature):
  one = experiment(7, entries=slots, mix=mix, temperature=temperature)
  sums, _ = gradient_on(one, (1, 1), batch(slots))
  z, q = logits_of(one), teacher().astype(np.float64)
  q[:, :, : VOCAB - slots] = 0
  weight, tokens = batch().weight_BL[0], batch().tokens_BL[0]

  def log_softmax(z):
    return z - np.log(np.exp(z).sum(-1, keepdims=True))

  said = -np.take_along_axis(log_softmax(z), tokens[..., None], -1)[..., 0]
  taught = -(q * log_softmax(z / temperature)).sum(-1)
  loss = (1 - mix) * temperature**2 * taught + mix * said
  loss[:, :12] = said[:, :12]
  has_teacher = weight * (np.arange(LENGTH) >= 12)
  np.testing.assert_allclose(sums.loss, (weight * loss).sum(), rtol=1e-5)
  assert sums.weight == weight.sum()
  for name, want, by in (
    ('language_loss', weight * said, weight),
    ('teacher_loss', has_teacher * taught, has_teacher),
    ('entries', has_teacher * slots, has_teacher),
  ):
    found, divisor = sums.metrics[name]
    np.testing.assert_allclose(found, want.sum(), rtol=1e-5, err_msg=name)
    assert divisor == by.sum(), name


def test_a_teacher_that_is_sure_of_the_data_is_the_data():
  """And mix=1 reads the data alone, whatever the teacher says."""
  sure = batch(1)
  extras = {
    'ids_BLT': sure.tokens_BL[..., None],
    'values_BLT': np.ones_like(sure.extras['values_BLT']),
  }
  plain = experiment()
  plain.objective.name = 'language'
  want, gradient = gradient_on(plain, (1, 1), sure._replace(extras=None))
  for mix, rows_ in ((0.0, sure._replace(extras=extras)), (1.0, sure)):
    found, by = gradient_on(experiment(entries=1, mix=mix), (1, 1), rows_)
    np.testing.assert_allclose(found.loss, want.loss, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(by), jax.tree.leaves(gradient)):
      np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())


@functools.cache
def on_one_device():
  return gradient_on(experiment(entries=40, mix=0.25), (1, 1), batch(40))


@pytest.mark.parametrize(
  'widths, chunk',
  [
    ((4, 2), 7),
    *(
      pytest.param(widths, chunk, marks=pytest.mark.slow)
      for widths, chunk in (
        ((8, 1), 0),
        ((4, 2), 0),
        ((2, 4), 7),
        ((1, 8), 0),
        ((1, 8), 7),
      )
    ),
  ],
)
def test_a_mesh_does_not_change_loss_nor_gradient(widths, chunk):
  want_sums, want = on_one_device()
  one = experiment(chunk, entries=40, mix=0.25)
  sums, gradient = gradient_on(one, widths, batch(40))
  for found, expected in zip(jax.tree.leaves(sums), jax.tree.leaves(want_sums)):
    np.testing.assert_allclose(found, expected, rtol=1e-5)
  for (path, g), expected in zip(
    jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(want)
  ):
    error = np.abs(g - expected).max() / np.abs(expected).max()
    assert error < 1e-5, (jax.tree_util.keystr(path), error)


def test_a_batch_without_a_teacher_is_refused():
  one = experiment(entries=VOCAB)
  gradient = step_lib.gradient_of(one, meshes.mesh_of(1))
  params = jax.eval_shape(lambda: params_lib.drawn(step_lib.model_of(one)))
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
