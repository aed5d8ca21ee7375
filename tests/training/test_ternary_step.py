"""Ternary updates as a training mode: replicas, checkpoints, the wire."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.aot import audit
from kaiju_jax.aot.hlo import collectives
from kaiju_jax.aot.hlo import text
from kaiju_jax.data import config as data_config
from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import text as text_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.evaluation import held_out
from kaiju_jax.model import config as model_config
from kaiju_jax.model import deployed
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.training import checkpoint
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import replicas
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step as step_lib
from kaiju_jax.wire import ternary_plan
from tests import meshes
from tests import toys
from tests.model import params as params_lib
from tests.model import rows

HERE, THERE = (4, 2), (8, 1)
WEIGHTS = {
  f'blocks.layer_0.{name}'
  for name in (
    'attention.w_q_DHK',
    'attention.w_k_DK',
    'attention.w_v_DK',
    'attention.w_o_DHK',
    'feedforward.w_in_DF',
    'feedforward.w_out_DF',
  )
}


def experiment(**quantization) -> experiment_lib.Experiment:
  """Two repeats of a block, so that replicas are scanned."""
  one = experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=48,
      d_model=64,
      layout='L0 L1',
      num_heads=4,
      head_dim=8,
      d_ff=128,
      max_length=32,
      window=5,
      dtype='float32',
      quantization=quantization_config.QuantizationConfig(
        **{'wire_weights': 'ternary', 'bungee': True} | quantization
      ),
    ),
    data=data_config.DataConfig(length=32, batch=8),
  )
  one.optimizer.learning_rate = 3e-3
  one.loop.steps = 20
  one.model.quantization.ternary.check_every = 3
  one.model.quantization.ternary.events_every = 2
  return one


@functools.cache
def batch():
  documents = [[32], [5, 27], [2, 3, 27], [16, 16]] * 2
  packed = rows.packed_batch(documents, 32, 48)
  return jax.tree.map(lambda x: x[None], packed)


def start(one, mesh):
  params = params_lib.drawn(step_lib.model_of(one), mesh)
  return state_lib.initialize(one, mesh, params=params)


@functools.cache
def first_state():
  return jax.device_get(start(experiment(), meshes.mesh_of(*HERE)))


def shardings(one, mesh):
  state, _ = step_lib.abstract(one, mesh)
  return jax.tree.map(lambda x: x.sharding, state)


def begin(widths):
  return jax.device_put(
    first_state(), shardings(experiment(), meshes.mesh_of(*widths))
  )


@functools.cache
def step_of(widths):
  """Compiled once: what is not stored as the step stores it is refused."""
  one, mesh = experiment(), meshes.mesh_of(*widths)
  return step_lib.make(one, mesh).lower(*step_lib.abstract(one, mesh)).compile()


def assert_devices_hold_the_same(replica):
  """The same part of an array, on whichever devices: the same bits."""
  for path, x in jax.tree_util.tree_leaves_with_path(replica):
    parts = {}
    for shard in x.addressable_shards:
      parts.setdefault(str(shard.index), []).append(np.asarray(shard.data))
    assert len(x.addressable_shards) == 8
    for first, *others in parts.values():
      assert len(others) >= 3, path
      for other in others:
        np.testing.assert_array_equal(first, other, str(path))


def test_it_learns_and_replicas_stay_equal():
  state, step = begin(HERE), step_of(HERE)
  assert state.replica.codes.keys() == WEIGHTS
  first = jax.device_get(state.replica)
  losses = []
  for number in range(1, 16):
    state, metrics = step(state, batch())
    losses.append(float(metrics['loss']))
    if number % 3 == 2:  # Right before a checksum would heal them.
      assert_devices_hold_the_same(state.replica)
    assert metrics['replica_resent'] == 0
    assert metrics['replica_damaged'] == metrics['replica_no_number'] == 0
    assert metrics['replica_lagging'] == 0
    if number % 2:
      assert metrics['replica_doubled'] == metrics['replica_halved'] == 0
  assert losses[-1] < losses[0] - 1, losses
  last = jax.device_get(state)
  flat = flatten(last.params)
  for path in WEIGHTS:
    # Without a lag, codes are the masters' on the replica's own grid.
    want = int8.encode(flat[path], last.replica.scales[path])
    np.testing.assert_allclose(last.replica.codes[path], want, atol=1)
    assert np.mean(last.replica.codes[path] != want) < 1e-2
    assert np.mean(last.replica.codes[path] != first.codes[path]) > 0.5


def flatten(params):
  return {
    '.'.join(key.key for key in path): x
    for path, x in jax.tree_util.tree_leaves_with_path(params)
  }


def run(step, state, count):
  for _ in range(count):
    state, metrics = step(state, batch())
  return state, float(metrics['loss'])


def saved(folder):
  """Returns a saved state, and the state and loss three steps later."""
  state, _ = run(step_of(HERE), begin(HERE), 5)
  with checkpoint.Checkpoints(folder, 1) as checkpoints:
    checkpoints.save(5, state, toys.NoBatches())
  kept = jax.device_get(state)
  return kept, *run(step_of(HERE), state, 3)


def restored(folder, widths, kept):
  """Returns the same of the restored state, on any mesh."""
  state, _ = step_lib.abstract(experiment(), meshes.mesh_of(*widths))
  with checkpoint.Checkpoints(folder, 1) as checkpoints:
    state, number = checkpoints.restore(state, toys.NoBatches())
  assert number == 5
  jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), kept)
  return run(step_of(widths), state, 3)


@pytest.mark.slow
def test_a_checkpoint_goes_on_bit_for_bit_and_on_another_mesh(tmp_path):
  """Between events codes are not what the masters would make: both are kept."""
  kept, want, want_loss = saved(tmp_path)
  again, loss = restored(tmp_path, HERE, kept)
  assert loss == want_loss
  jax.tree.map(np.testing.assert_array_equal, again, want)
  elsewhere, loss = restored(tmp_path, THERE, kept)
  # Squinch rounds other parts of the sums there, and Adam follows.
  assert loss == pytest.approx(want_loss, rel=2e-2)
  assert_devices_hold_the_same(elsewhere.replica)


def test_the_wire_carries_trits_and_codes_only_to_heal():
  one, mesh = experiment(), meshes.mesh_of(4, 2)
  program = step_of((4, 2))
  found = collectives.read(text.parse(program.as_text()), mesh.shape)
  assert audit.problems(found, one, mesh_lib.config_of(mesh)) == ()
  rare = [x for x in found if '/cond/' in x.op_name]
  always = [x for x in found if x not in rare and 'fsdp' in x.axes]
  trits = [x for x in always if (x.kind, x.dtype) == ('all-gather', 'u8')]
  gradients = [x for x in always if (x.kind, x.dtype) == ('all-to-all', 'u8')]
  rest = [x for x in always if x not in trits + gradients]
  table = 64 * 24  # The embedding is float.
  assert {x.size for x in rest if x.size > 64} == {table}
  # 1.6 bits a weight; so few rows an owner are padded to five planes.
  state, _ = step_lib.abstract(one, mesh)
  weights = sum(map(bytes_of, state.replica.codes.values()))
  assert weights / 5 <= result_bytes(trits) <= weights / 4.5
  assert result_bytes(x for x in rare if x.dtype == 's8') == weights
  # The state is donated, replicas too.
  aliased = program.memory_analysis().alias_size_in_bytes
  assert aliased >= sum(map(bytes_of, jax.tree.leaves(state)))


def result_bytes(found):
  return sum(x.times * x.result_bytes for x in found)


def bytes_of(x):
  """Of one device's part."""
  return math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize


def test_the_model_and_its_export_read_no_master():
  one = experiment(embedding='int8')
  mesh = mesh_lib.single()
  state = start(one, mesh)
  assert state.replica.codes.keys() == WEIGHTS | {'embedding.embedding_DV'}
  none = zeroed(state.params, state.replica.codes)
  model = step_lib.model_of(one)
  first = jax.tree.map(lambda x: x[0], batch())
  tokens = first.tokens_BL, first.visibility()

  @jax.jit
  def logits(params, replica):
    held = ternary_plan.collections(replica)
    return model.apply({'params': params, **held}, *tokens)

  want = logits(state.params, state.replica)
  np.testing.assert_array_equal(logits(none, state.replica), want)
  exported = deployed.quantize(none, one.model, state.replica)
  np.testing.assert_array_equal(logits(exported, None), want)


@pytest.mark.slow
def test_evaluation_reads_what_training_reads():
  one, mesh = experiment(embedding='int8'), meshes.mesh_of(2, 2)
  state = start(one, mesh)
  stored = jax.tree.map(lambda x: x.sharding, state)
  assert stored == shardings(one, mesh)
  corpus = text_lib.corpus(
    [documents_lib.Document('a', ('\x01\x02\x03' * 40,))],
    tokenizer_lib.Bytes(),
    measured=True,
  )
  scores = held_out.evaluator(
    step_lib.model_of(one), {'': corpus}, [1.0], 32, 2, 2, mesh
  )
  want = scores(state.params, state.replica)
  none = zeroed(state.params, state.replica.codes)
  assert scores(none, state.replica) == want
  wider = {path: 2 * x for path, x in state.replica.scales.items()}
  other = scores(state.params, state.replica._replace(scales=wider))
  assert other['loss'] != want['loss']


def zeroed(params, paths):
  return jax.tree_util.tree_map_with_path(
    lambda path, w: (
      jnp.zeros_like(w) if '.'.join(key.key for key in path) in paths else w
    ),
    params,
  )


def test_a_model_without_its_replica_is_refused():
  one = experiment()
  model = step_lib.model_of(one)
  params = params_lib.drawn(model)
  first = jax.tree.map(lambda x: x[0], batch())
  with pytest.raises(ValueError, match=r"w_._\w+: .*'ternary' reads a replica"):
    model.apply({'params': params}, first.tokens_BL, first.visibility())
  with pytest.raises(ValueError, match=r"'ternary': the replica .* is missing"):
    deployed.quantize(params, one.model)


@pytest.mark.parametrize(
  'field, value, message',
  [
    ('matmul', 'none', "='ternary' needs .*matmul='int8', not 'none'"),
    ('ternary.check_every', 0, 'ternary.check_every=0: '),
    ('ternary.events_every', -1, 'ternary.events_every=-1: '),
    ('ternary.least_scale', -1.0, 'ternary.least_scale=-1.0: '),
    ('wire_weights', 'trits', "must be one of 'int8', 'float', 'ternary'"),
  ],
)
def test_settings_that_cannot_be_meant_are_refused(field, value, message):
  model = experiment().model
  toys.change(model.quantization, {field: value})
  with pytest.raises(ValueError, match=message):
    model_config.check(model)


def test_grids_that_may_lag_are_warned_of_and_impossible_ones_refused():
  one = experiment()
  assert replicas.least_scale(one) == pytest.approx(1.7 * 3e-3, rel=0.01)
  one.model.quantization.ternary.least_scale = 1e-6
  with pytest.warns(UserWarning, match='least_scale=1e-06: codes may lag'):
    step_lib.make(one, mesh_lib.single())
  one.model.quantization.ternary.least_scale = 0.0
  one.optimizer.b1, one.optimizer.b2 = 0.9, 0.5
  with pytest.raises(ValueError, match=r'b1=0\.9, b2=0\.5'):
    step_lib.make(one, mesh_lib.single())
