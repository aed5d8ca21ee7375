"""Adapters in the step: their gradients, their bits, and their place."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.model import deployed
from kaiju_jax.model import lora
from kaiju_jax.objectives import language
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import rules
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step as step_lib
from tests import meshes
from tests.model import params as params_lib
from tests.model import rows

FLOATS = quantization_config.none()
CODES = quantization_config.for_serving('all')
# Relu² with its limit from the weights, and clamped inputs.
OURS = quantization_config.QuantizationConfig(embedding='int8')


def experiment(quantization, **model):
  model = {
    'vocab_size': 48,
    'd_model': 16,
    'layout': 'L0 L0 L2 L2',
    'num_heads': 4,
    'num_kv_heads': 2,
    'head_dim': 8,
    'd_ff': 24,
    'max_length': 32,
    'window': 5,
    'dtype': 'float32',
    'feedforward': 'swiglu',
    'quantization': quantization,
    **model,
  }
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(**model),
    data=data_config.DataConfig(length=16, batch=2, microbatches=1),
    optimizer=training_config.OptimizerConfig(learning_rate=2e-2, warmup=0.0),
    loop=training_config.LoopConfig(steps=20),
    lora=training_config.LoraConfig(3, 6.0),
  )


def masters(one, mesh=None):
  return params_lib.drawn(step_lib.model_of(one), mesh)


def adapted(one, up=0.0):
  """Returns a base with adapters; B has the standard deviation `up`."""
  base = deployed.quantize(masters(one), one.model)
  params = state_lib.attach(one, base)
  rng = np.random.default_rng(1)

  def start(path, leaf):
    name = rules.name_of(path)
    if up and name.startswith('lora_up'):
      return jnp.asarray(up * rng.standard_normal(leaf.shape), jnp.float32)
    return leaf

  return jax.tree_util.tree_map_with_path(start, params)


@functools.cache
def batch():
  one = rows.packed_batch([[16], [5, 6]], 16, 48, seed=1)
  return jax.tree.map(lambda x: np.stack([x]), one)


def gradient(one, params, objective=None, mesh=None):
  """Returns the step's loss and gradient, in its objective's parameters."""
  mesh = mesh or meshes.mesh_of(1)
  objective = objective or state_lib.objective_of(one)
  of = jax.jit(step_lib.gradient_of(one, mesh, objective))
  params = jax.device_put(params, rules.shardings(params, mesh))
  sums, found = of(params, batch(), 1, 0.0, 0.0)
  return float(sums.loss), jax.device_get(found)


def adapters_of(params):
  """Yields (module, weight's name, path) of every adapter."""
  for place in lora.choose(params, '*'):
    *parents, name = place.split('.')
    module = params['blocks']
    for parent in parents:
      module = module[parent]
    if lora.names_of(name).scale in module:
      yield module, name, (*parents, name)


def at(tree, path):
  tree = tree['blocks']
  for key in path:
    tree = tree[key]
  return np.asarray(tree, np.float64)


def assert_projected(params, found, dense):
  """Holds every adapter's gradient to the dense gradient's projection."""
  count = 0
  for module, name, path in adapters_of(params):
    names, letters = lora.names_of(name), rules.letters_of(name)
    down, up = (np.asarray(module[key], np.float64) for key in names[:2])
    scale = np.asarray(module[names.scale], np.float64)
    ins, outs = (rules.letters_of(key) for key in names[:2])
    of_N = {'N': scale, 'G': at(dense, path)}
    whole = np.einsum(f'N,N{letters}->N{letters}', of_N['N'], of_N['G'])
    wanted = {
      names.down: np.einsum(f'N{letters},N{outs}->N{ins}', whole, up),
      names.up: np.einsum(f'N{letters},N{ins}->N{outs}', whole, down),
    }
    for key, value in wanted.items():
      ours = at(found, (*path[:-1], key))
      size = np.abs(value).max()
      assert size > 0 or 'up' not in key, key
      np.testing.assert_allclose(
        ours, value, rtol=1e-5, atol=1e-5 * size + 1e-12, err_msg=str(path)
      )
      count += 1
  return count


def test_gradients_are_the_dense_ones_projected():
  """Floats; the oracle trains the merged weights and knows no adapter."""
  one = experiment(FLOATS)
  params = adapted(one, up=0.1)
  loss, found = gradient(one, params)
  merged = lora.merge(params, one.model)
  assert not lora.is_adapted(merged)
  dense = dataclasses.replace(one, lora=training_config.LoraConfig())
  wanted, whole = gradient(dense, merged)
  np.testing.assert_allclose(loss, wanted, rtol=1e-6)
  # q, o, in, gate and out of two layers, k and v of one.
  assert assert_projected(params, found, whole) == 2 * (5 * 2 + 2)


def widened(params):
  """Returns the same model with adapters whose down-projection is I."""

  def whole(tree):
    out = dict(tree)
    for name, node in tree.items():
      if isinstance(node, dict):
        out[name] = whole(node)
      elif name in rules.CONTRACTED and lora.names_of(name).scale in tree:
        names, letters = lora.names_of(name), rules.letters_of(name)
        ins, outs = (rules.letters_of(key) for key in names[:2])
        down, up, scale = (tree[key] for key in names)
        dense = jnp.einsum(f'N,N{ins},N{outs}->N{letters}', scale, down, up)
        summed = down.shape[1:-1]
        size = int(np.prod(summed))
        eye = jnp.eye(size).reshape(*summed, size)
        out[names.down] = jnp.broadcast_to(eye, (len(scale), *eye.shape))
        split = (-1, size) if outs == 'DR' else (size, *up.shape[2:])
        out[names.up] = dense.reshape(len(scale), *split)
        out[names.scale] = jnp.ones_like(scale)
    return out

  return {**params, 'blocks': whole(params['blocks'])}


@pytest.mark.parametrize(
  'quantization',
  [CODES, pytest.param(OURS, marks=pytest.mark.slow)],
  ids=['open', 'ours'],
)
def test_gradients_beside_codes_are_projected(quantization):
  """The oracle is a dense float matrix beside the same codes."""
  is_ours = quantization is OURS
  shape = dict(feedforward='relu2', num_kv_heads=1) if is_ours else {}
  one = experiment(quantization, **shape)
  params = adapted(one, up=0.1)
  assert deployed.is_deployed(params)
  loss, found = gradient(one, params)
  wanted, whole = gradient(one, widened(params))
  np.testing.assert_allclose(loss, wanted, rtol=1e-5)
  dense = jax.tree.map(lambda x: x, whole)

  def named(tree):
    for name in list(tree):
      if isinstance(tree[name], dict):
        named(tree[name])
    for weight in rules.CONTRACTED:
      up = lora.names_of(weight).up
      if up in tree:
        tree[weight] = tree[up].reshape(shapes[weight])

  modules = {name: module[name] for module, name, _ in adapters_of(params)}
  shapes = {name: w.codes.shape for name, w in modules.items()}
  named(dense['blocks'])
  assert assert_projected(params, found, dense) in (20, 24)


def leaves_of(params, prefix):
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return [x for path, x in leaves if rules.name_of(path).startswith(prefix)]


@pytest.mark.parametrize('rank', [1, 2, 5])
def test_an_adapter_begins_with_alpha_over_its_rank(rank):
  one = experiment(FLOATS)
  one.lora = training_config.LoraConfig(rank, 6.0)
  scales = leaves_of(state_lib.attach(one, masters(one)), 'lora_scale')
  assert len(scales) >= 6
  for scale in scales:
    np.testing.assert_allclose(scale, 6.0 / rank)


def test_no_two_adapters_begin_alike_and_another_seed_begins_otherwise():
  params = masters(experiment(FLOATS))
  drawn = [
    np.asarray(x).tobytes()
    for seed in (0, 1)
    for x in leaves_of(lora.attach(params, 3, 6.0, '*', seed), 'lora_down')
  ]
  assert len(drawn) >= 24 and len(set(drawn)) == len(drawn)


def test_the_first_loss_is_that_of_the_base():
  one = experiment(CODES)
  params = adapted(one)
  base = lora.split(params)[1]
  model, rows_BL = step_lib.model_of(one), jax.tree.map(lambda x: x[0], batch())
  of = jax.jit(
    lambda params: language.weighted_cross_entropy(
      model, params, rows_BL, 0.0, 0.0
    )
  )
  assert float(of(params)) == float(of(base))


def test_only_adapters_move_and_the_loss_falls():
  one = experiment(CODES)
  params = adapted(one)
  before = jax.device_get(params)
  state = state_lib.initialize(one, params=params)
  moments = jax.tree_util.tree_leaves_with_path(state.opt_state)
  kept = {rules.name_of(path) for path, leaf in moments if np.ndim(leaf) > 1}
  assert kept and all(map(lora.is_trained, kept))
  step = step_lib.make(one, start=state)
  losses = []
  for _ in range(20):
    state, metrics = step(state, batch())
    losses.append(float(metrics['loss']))
  assert losses[-1] < 0.8 * losses[0]
  assert step.compilations == 1
  for path, leaf in jax.tree_util.tree_leaves_with_path(before):
    after = objective_lib.join(state.params, {})
    for key in path:
      name = getattr(key, 'key', None) or getattr(key, 'name', None)
      after = after[name] if isinstance(after, dict) else getattr(after, name)
    same = np.array_equal(leaf, after)
    assert same != lora.is_trained(rules.name_of(path)), path


def test_rank_0_learns_nothing():
  one = experiment(CODES)
  base = lora.split(adapted(one))[1]
  nothing = lora.attach(base, 0, 6.0)
  step = step_lib.make(
    one, start=(state := state_lib.initialize(one, params=nothing))
  )
  losses = []
  for _ in range(3):
    state, metrics = step(state, batch())
    losses.append(float(metrics['loss']))
  assert losses[0] == losses[1] == losses[2]


@pytest.fixture(scope='module')
def on_one_device():
  one = experiment(OURS, feedforward='relu2', layout='L0 L0')
  params = adapted(one, up=0.1)
  return one, params, gradient(one, params)


@pytest.mark.parametrize('fsdp, tensor', [(2, 2), (1, 4)])
def test_a_mesh_does_not_change_the_gradient(on_one_device, fsdp, tensor):
  one, params, (loss, wanted) = on_one_device
  other, found = gradient(one, params, mesh=meshes.mesh_of(fsdp, tensor))
  np.testing.assert_allclose(other, loss, rtol=1e-6)
  for (path, ours), theirs in zip(
    jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(wanted)
  ):
    size = np.abs(theirs).max()
    np.testing.assert_allclose(
      ours, theirs, rtol=1e-4, atol=1e-5 * size, err_msg=str(path)
    )


def test_adapters_and_codes_are_split_like_their_weights():
  one = experiment(CODES)
  specs = rules.specs(adapted(one), meshes.mesh_of(2, 2))
  layer = specs['blocks']['layer_0']
  found = {
    name: tuple(spec)
    for name, spec in (layer['attention'] | layer['feedforward']).items()
    if name.startswith('lora') and ('_q' in name or '_o' in name)
  }
  assert found == {
    'lora_down_q_DR': (None, 'fsdp'),
    'lora_up_q_RHK': (None, None, 'tensor'),
    'lora_scale_q': (),
    'lora_down_o_HKR': (None, 'tensor'),
    'lora_up_o_DR': (None, 'fsdp'),
    'lora_scale_o': (),
    'lora_down_out_FR': (None, 'tensor'),
    'lora_up_out_DR': (None, 'fsdp'),
    'lora_scale_out': (),
  }
  assert layer['attention']['w_q_DHK'] == int8.Quantized(
    jax.P(None, 'fsdp', 'tensor'), jax.P(None, None, 'tensor')
  )
