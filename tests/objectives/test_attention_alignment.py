"""A student's attention learns what its teacher's gives, on any mesh."""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.model import attention
from kaiju_jax.model import transformer
from kaiju_jax.objectives import attention_alignment
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import step as step_lib
from tests import meshes
from tests.interchange import toys
from tests.model import rows

LENGTH, VOCAB = 16, 64
# Heads, layers and windows differ from the teacher's. The student has two
# repeats of three layers, the teacher three of two.
STUDENT = toys.changed(
  toys.PLAIN,
  vocab_size=VOCAB,
  d_model=16,
  d_ff=16,
  num_layers=6,
  layout='L0 L1 L1 L3 L4 L4',
  window=4,
)
TAUGHT = objective_config.AttentionAlignment(
  'teacher', 'G0 L1 G2 L3 G4 L5', 2, 6
)
TEACHER = attention_alignment.teacher_of(TAUGHT, STUDENT)


@functools.cache
def batch():
  """Two documents in each row, with padding behind them."""
  return rows.packed_batch([[5, 7], [3, 9]], LENGTH, VOCAB)


@functools.cache
def params():
  return {
    **toys.params_of(STUDENT),
    attention_alignment.TEACHER: toys.params_of(TEACHER, seed=1),
  }


@functools.cache
def gradient_on(*widths):
  """Returns the step's sums and gradient on a mesh."""
  experiment = experiment_lib.Experiment(
    model=STUDENT,
    objective=objective_config.ObjectiveConfig(
      'attention_alignment', attention_alignment=TAUGHT
    ),
  )
  experiment.data.length, experiment.data.batch = LENGTH, 2
  of = step_lib.gradient_of(experiment, meshes.mesh_of(*widths))
  one = batch().map(lambda x: x[None])
  return jax.device_get(jax.jit(of)(params(), one, 1, 0.0, 0.0))


def outputs_of(config, params, inputs=None):
  """Returns the inputs and outputs of attention, layer by layer.

  An oracle: a plain loop over the layers, whose repeats are taken apart.
  """
  model = transformer.Transformer(config, unstacked=True)
  repeats = jax.tree.leaves(params['blocks'])[0].shape[0]
  period = config.num_layers // repeats
  apart = {
    f'layer_{n * period + place}': jax.tree.map(
      lambda x, n=n: x[n], params['blocks'][f'layer_{place}']
    )
    for n in range(repeats)
    for place in range(period)
  }

  @jax.jit
  def run(apart, inputs):
    seen, made = [], []

    def swap(function, args, kwargs, info):
      is_attention = isinstance(info.module, attention.Attention)
      if not is_attention or info.method_name != '__call__':
        return function(*args, **kwargs)
      if inputs is not None:
        args = (inputs[len(seen)], *args[1:])
      out = function(*args, **kwargs)
      seen.append(args[0])
      made.append(out[0])
      return out

    with nn.intercept_methods(swap):
      model.apply(
        {'params': {**params, 'blocks': apart}},
        batch().tokens_BL,
        batch().visibility(),
        method='hidden',
      )
    return jnp.stack(seen), jnp.stack(made)

  return jax.device_get(run(apart, inputs))


def test_the_loss_is_the_relative_error_on_the_teachers_inputs():
  sums, _ = gradient_on(1, 1)
  teacher = params()[attention_alignment.TEACHER]
  inputs, wanted = outputs_of(TEACHER, teacher)
  _, given = outputs_of(STUDENT, params(), inputs)
  is_token = batch().limit_BL > batch().start_BL
  off = np.square(given - wanted)[:, is_token].sum((1, 2))
  size = np.square(wanted)[:, is_token].sum((1, 2))
  tokens = is_token.sum()
  assert 0 < tokens == sums.weight < is_token.size
  np.testing.assert_allclose(sums.loss / tokens, np.mean(off / size), rtol=1e-5)
  found = [sums.metrics[f'error/{i}'][0] / tokens for i in range(6)]
  np.testing.assert_allclose(found, off / size, rtol=1e-5)


def test_only_attention_gets_a_gradient_and_a_mesh_does_not_change_it():
  sums, gradient = gradient_on(1, 1)
  assert gradient.keys() == {'blocks'}
  for layer in gradient['blocks'].values():
    assert layer.keys() == {'attention'}
    for name, leaf in layer['attention'].items():
      # Each repeat of each matrix learns.
      assert np.abs(leaf).max(tuple(range(1, leaf.ndim))).min() > 0, name
  others, same = gradient_on(2, 2)
  np.testing.assert_allclose(
    others.loss / others.weight, sums.loss / sums.weight, rtol=1e-5
  )
  for a, b in zip(jax.tree.leaves(same), jax.tree.leaves(gradient)):
    a, b = a / others.weight, b / sums.weight
    np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max())
