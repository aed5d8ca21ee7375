"""Training through the kernels is training through XLA's dots."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.int8_matmul import api
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import qat
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import step as step_lib
from tests import meshes
from tests.model import params as params_lib
from tests.model import rows

P = jax.sharding.PartitionSpec
SPECS = {
  'BLD,DHK->BLHK': ((2, 5, 16), (16, 3, 8), (0,)),
  'BLD,DF->BLF': ((2, 5, 16), (16, 24), (0,)),
  'BLF,DF->BLD': ((2, 5, 24), (16, 24), (1,)),
  'BLHK,DHK->BLD': ((2, 5, 3, 8), (16, 3, 8), (1, 2)),
}
KERNELS = ('pallas_gpu', 'pallas_tpu')


@pytest.fixture(autouse=True)
def interpreted():
  with dispatch.interpret():
    yield


def projected(spec, implementation, coded=False, limit=None, **options):
  """Returns y, dx and dw of one projection.

  The weight comes as codes, and the limit as a number, into the compiled
  function, as behind the barrier in training. Otherwise XLA may multiply and
  divide in another order.
  """
  rng = np.random.default_rng(0)
  x_shape, w_shape, axes = SPECS[spec]
  x = jnp.asarray(rng.standard_normal(x_shape), jnp.float32)
  x = jnp.abs(x) if options.get('nonnegative') else x
  w = jnp.asarray(rng.standard_normal(w_shape), jnp.float32)

  weight = qat.quantize(w, axes, jnp.float32)

  def project(x, carrier, weight, limit):
    x = qat.quantize(x, (-1,), x.dtype) if coded else x
    return qat.einsum(
      spec,
      x,
      weight._replace(carrier=carrier),
      clip_at=limit,
      implementation=implementation,
      **options,
    )

  @jax.jit
  def run(x, weight, limit):
    y, pull = jax.vjp(
      lambda x, carrier: project(x, carrier, weight, limit), x, weight.carrier
    )
    dy = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)
    return y, *pull(dy)

  y, dx, dw = run(x, weight, limit)
  alone = jax.jit(project)(x, weight.carrier, weight, limit)
  np.testing.assert_array_equal(y, alone)
  return y, dx, dw


CASES = [
  ('BLD,DHK->BLHK', {'coded': True}),
  ('BLD,DF->BLF', {'input_gradient': 'int8'}),
  ('BLF,DF->BLD', {'nonnegative': True, 'limit': jnp.float32(0.7)}),
  ('BLHK,DHK->BLD', {'input_gradient': 'int8'}),
]


# All implementations have one contract, which their own tests hold.
@pytest.mark.parametrize(('spec', 'options'), CASES, ids=lambda x: str(x)[:13])
@pytest.mark.parametrize(
  'implementation',
  ['xla', *(pytest.param(x, marks=pytest.mark.slow) for x in KERNELS)],
)
def test_a_projection_and_its_gradients(implementation, spec, options):
  want = projected(spec, '', **options)
  got = projected(spec, implementation, **options)
  np.testing.assert_array_equal(got[0], want[0])
  error = 0 if 'input_gradient' in options else 1e-5
  np.testing.assert_allclose(got[1], want[1], rtol=error, atol=error)
  np.testing.assert_allclose(got[2], want[2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  'implementation', ['xla', pytest.param('pallas_gpu', marks=pytest.mark.slow)]
)
def test_a_row_over_two_devices_has_one_limit(implementation):
  """Each device's part of a row alone would have a scale of its own."""
  mesh = meshes.mesh_of(1, 2)
  rng = np.random.default_rng(0)
  x_BLF = rng.standard_normal((2, 5, 24)).astype(np.float32)
  x_BLF[..., :12] *= 9
  w_DF = rng.standard_normal((16, 24)).astype(np.float32)

  @functools.partial(jax.jit, static_argnums=2)
  def run(x_BLF, w_DF, implementation):
    def on_each(x_BLF, w_DF):
      def part(x_BLF, w_DF):
        w = qat.quantize(w_DF, (1,), jnp.float32)
        # The cotangent's rows are split in the other projection.
        y_BLD = qat.einsum(
          'BLF,DF->BLD', x_BLF, w, implementation=implementation
        )
        v = qat.quantize(w_DF, (0,), jnp.float32)
        y_BLF = qat.einsum(
          'BLD,DF->BLF',
          y_BLD,
          v,
          input_gradient='int8',
          implementation=implementation,
        )
        return y_BLD, y_BLF

      out, pull = jax.vjp(part, x_BLF, w_DF)
      return *out, *pull(jax.tree.map(jnp.cos, out))

    whole, split = P(None, None, None), P(None, None, 'tensor')
    return jax.shard_map(
      on_each,
      mesh=mesh,
      in_specs=(split, P(None, 'tensor')),
      out_specs=(whole, split, split, P(None, 'tensor')),
      check_vma=False,
    )(x_BLF, w_DF)

  want = run(x_BLF, w_DF, '')
  got = run(x_BLF, w_DF, implementation)
  np.testing.assert_array_equal(got[0], want[0])
  np.testing.assert_array_equal(got[1], want[1])
  for one, other in zip(got[2:], want[2:]):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)


@functools.cache
def trained(implementation):
  """Returns the loss and gradient of a model of one layer."""
  one = experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=48,
      d_model=32,
      layout='L0',
      num_heads=2,
      head_dim=16,
      d_ff=64,
      max_length=16,
      window=5,
      dtype='float32',
      quantization=quantization_config.QuantizationConfig(
        matmul_implementation=implementation
      ),
    ),
    data=data_config.DataConfig(length=16, batch=2),
  )
  mesh = meshes.mesh_of(1, 1)
  params = params_lib.drawn(step_lib.model_of(one), mesh)
  batch = rows.packed_batch([[16], [5, 6]], 16, 48)
  gradient = jax.jit(step_lib.gradient_of(one, mesh))
  sums, found = gradient(
    params,
    jax.tree.map(lambda x: x[None], batch),
    1,
    jnp.float32(1e-2),
    jnp.float32(1e-3),
  )
  return jax.device_get((sums.loss, found))


@pytest.mark.slow
@pytest.mark.parametrize('implementation', KERNELS)
def test_a_models_loss_and_gradient(implementation):
  want_loss, want = trained('')
  loss, got = trained(implementation)
  np.testing.assert_array_equal(loss, want_loss)
  sizes = jax.tree.map(lambda x: np.abs(x).max(), want)
  jax.tree.map(
    lambda one, other, size: np.testing.assert_allclose(
      one, other, atol=1e-3 * size
    ),
    got,
    want,
    sizes,
  )
  assert all(size > 0 for size in jax.tree.leaves(sizes))


def test_config_names_the_kernels_implementations():
  choices = quantization_config.CHOICES['matmul_implementation']
  assert choices == ('', *api.RUNS_ON)
