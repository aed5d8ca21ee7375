"""Training memory by hand, and beside what XLA plans."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax import visibility
from kaiju_jax.aot import build
from kaiju_jax.costs import training_memory
from kaiju_jax.data import config as data_config
from kaiju_jax.data import packing
from kaiju_jax.model import config as model_config
from kaiju_jax.model import presets
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import optimizer
from kaiju_jax.training import state
from kaiju_jax.training import step
from tests import meshes

TINY = model_config.ModelConfig(
  vocab_size=16,
  d_model=8,
  num_heads=2,
  head_dim=4,
  d_ff=32,
  layout='L0 L0 G2',
  remat='layer',
)


def test_training_memory_by_hand():
  # P = 8·16 + 7·8 + 6·64 + 4·32 + 6·256 = 2,232. A layer saves
  # 24·8 + 2·(2·8 + 3·32 + 2·8) + 5·8 + 3·32 + 3·8 = 608 bytes per token. The
  # two owners' keys and values are 2·2·(4 + 4) bytes per token. T = 2·16.
  assert training_memory.estimate(TINY, 2, 16) == {
    'parameters': 4 * 2232,
    'Adam moments': 8 * 2232,
    'gradients': 4 * 2232,
    'weights in use': 2 * 3 * 2048 // 3 + 2 * 128,
    'saved activations': 32 * (3 * 16 + 32),
    'working set': 3 * 608 * 32,
    'logits': 6 * 32 * 16,
  }
  assert training_memory.estimate(
    dataclasses.replace(TINY, remat='none'), 2, 16
  ) == training_memory.estimate(TINY, 2, 16) | {
    'weights in use': 2 * 3 * 2048 // 3 + 2 * 128 + 2048,
    'saved activations': 32 * 3 * 608,
  }
  # Plain f32: 24·8 + 4·(2·8 + 3·32 + 2·8) + 32 = 736 bytes.
  plain = dataclasses.replace(
    TINY, dtype='float32', quantization=quantization_config.none()
  )
  assert training_memory.estimate(plain, 2, 16) == {
    **training_memory.estimate(TINY, 2, 16),
    'weights in use': 2 * 8 * 2048 // 3 + 4 * 128,
    'saved activations': 32 * (3 * 32 + 2 * 32),
    'working set': 3 * 736 * 32,
    'logits': 8 * 32 * 16,
  }


def test_replicas_by_hand():
  # All six matrices as codes, three layers of them; w_in is the largest.
  ternary = dataclasses.replace(
    TINY, quantization=quantization_config.QuantizationConfig()
  )
  ternary.quantization.wire_weights = 'ternary'
  assert training_memory.estimate(ternary, 2, 16) == {
    **training_memory.estimate(TINY, 2, 16),
    'replicas': 2048,
    "replicas' update": 2048 // 5 + 2 * 256,
    'weights in use': 2 * 2 * 2048 // 3 + 2 * 128,
  }
  # The repeats of a block are one array. Over tensor, w_k and w_v are whole.
  stacked = dataclasses.replace(ternary, layout='L0 G1 L2 G3')
  memory = training_memory.estimate(stacked, 2, 16, tensor=2)
  assert memory['replicas'] == 4 * (32 + 32 + 32 + 32 + 128 + 128)
  assert memory["replicas' update"] == (
    memory['replicas'] // 5 + 2 * 2 * 256 // 2
  )
  ternary.quantization.embedding = 'int8'
  assert training_memory.replica_codes(ternary) == 2048 + 128


def test_a_mesh_shards_parameters_by_their_letters():
  # D over 4 splits everything; F, H and V over 2 all but gains, w_k and w_v.
  sharded = training_memory.estimate(TINY, 4, 16, fsdp=4, tensor=2)
  assert sharded['parameters'] == 4 * (
    (56 + 128) // 4 + (128 + 6 * 64 + 6 * 256) // 8
  )
  one = training_memory.estimate(TINY, 1, 16)
  assert sharded['logits'] == one['logits'] // 2
  assert sharded['working set'] == one['working set'] // 2


@pytest.mark.parametrize(
  'arguments, message',
  [
    (dict(batch=0), 'batch=0: must be at least 1'),
    (dict(fsdp=0), 'fsdp=0: must be at least 1'),
    (dict(batch=3, fsdp=2), 'batch=3: must be a multiple of fsdp=2'),
    (dict(batch=3, fsdp=3), 'd_model=8: must be a multiple of fsdp=3'),
    (dict(length=17, tensor=2), 'length=17: must be a multiple of tensor=2'),
    (dict(tensor=3), 'num_heads=2: .* mesh.tensor=3; .* divides over 1, 2'),
  ],
)
def test_a_mesh_that_does_not_fit_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    training_memory.estimate(TINY, **(dict(batch=4, length=16) | arguments))


@pytest.mark.parametrize(
  'remat, quantization, dtype',
  [
    pytest.param('layer', quantization_config.none(), 'float32', id='layer'),
    pytest.param(
      'none',
      quantization_config.QuantizationConfig(),
      'bfloat16',
      id='none',
      marks=pytest.mark.slow,
    ),
  ],
)
def test_training_memory_is_near_what_xla_plans(remat, quantization, dtype):
  # A block of one layer compiles fast, and is recomputed on a CPU, too.
  model = dataclasses.replace(
    presets.preset('1m'),
    vocab_size=8192,
    num_layers=12,
    period=0,
    local_share=1,
    max_length=2048,
    attention='chunked',
    remat=remat,
    quantization=quantization,
    dtype=dtype,
  )
  planned = planned_bytes(model, batch=2, length=2048)
  estimate = sum(training_memory.estimate(model, 2, 2048).values())
  assert 0.65 < estimate / planned < 1.6


def planned_bytes(model, batch: int, length: int) -> int:
  """Returns the bytes of the training step that XLA plans for one device."""
  experiment = experiment_lib.Experiment(model=model)
  chain = optimizer.make(experiment.optimizer)
  abstract_state = jax.eval_shape(
    lambda key: state.create(
      step.model_of(experiment).init(
        key, jnp.zeros((1, 8), jnp.int32), visibility.causal(8)
      )['params'],
      chain,
    ),
    jax.random.key(0),
  )
  abstract_batch = packing.Batch(
    *(
      jax.ShapeDtypeStruct(
        (1, batch, length), jnp.float32 if 'weight' in name else jnp.int32
      )
      for name in packing.Batch._fields
      if name != 'extras'
    )
  )
  compiled = step.make(experiment).lower(abstract_state, abstract_batch)
  memory = compiled.compile().memory_analysis()
  return (
    memory.argument_size_in_bytes
    + memory.temp_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
  )


@pytest.mark.slow
def test_memory_of_ternary_updates_is_near_what_xla_plans():
  """On eight devices whose weights outweigh the rows, as on a slice."""
  model = dataclasses.replace(
    presets.preset('1m'),
    d_model=256,
    d_ff=2048,
    num_layers=8,
    period=0,
    local_share=1,
    max_length=64,
    remat='layer',
  )
  model.quantization.wire_weights = 'ternary'
  experiment = experiment_lib.Experiment(
    model=model, data=data_config.DataConfig(length=64, batch=4)
  )
  mesh = meshes.mesh_of(4, 2)
  abstract = step.abstract(experiment, mesh)
  memory = build.build(step.make(experiment, mesh), abstract).memory
  estimate = training_memory.estimate(model, 4, 64, 4, 2)
  # The state is no estimate: only scales and the batch are left out.
  state_bytes = sum(
    estimate[name] for name in ('parameters', 'Adam moments', 'replicas')
  )
  assert 1 <= memory.arguments / state_bytes < 1.02
  assert 0.65 < sum(estimate.values()) / memory.needed < 1.6
