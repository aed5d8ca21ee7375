"""Logits in chunks are those of the whole, in much less memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.objectives import language
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.objectives import vocabulary_loss
from kaiju_jax.sharding import rules
from kaiju_jax.training import step as step_lib
from tests import meshes
from tests.model import params as params_lib
from tests.model import rows
from tests.objectives import shallow

ROWS, LENGTH, WIDTH, SLOTS = 2, 21, 16, 5


@functools.cache
def drawn():
  """Hidden states, tokens, and entries of which some slots are free."""
  rng = np.random.default_rng(0)
  shape = ROWS, LENGTH
  values = rng.random((*shape, SLOTS)).astype(np.float32)
  values[:, ::3, 2:] = 0
  return (
    rng.normal(size=(*shape, WIDTH)).astype(np.float32),
    rng.integers(0, shallow.VOCAB, shape).astype(np.int32),
    rng.integers(0, shallow.VOCAB, (*shape, SLOTS)).astype(np.int32),
    values,
  )


def readings(one, params, hidden, chunk, temperature=1.0):
  _, tokens, ids, values = drawn()
  return vocabulary_loss.read(
    one,
    {'params': params},
    hidden.astype(one.config.dtype),
    tokens,
    entries=vocabulary_loss.Entries(ids, values),
    temperature=temperature,
    chunk=chunk,
  )


def test_readings_and_their_gradients_are_those_of_float64():
  """A chunk of 8 cuts rows of 21 anywhere, and leaves a rest."""
  one, temperature = shallow.model(d_model=WIDTH), 2.0
  params = shallow.params(one)
  hidden, tokens, ids, values = drawn()
  pull = np.random.default_rng(1).normal(size=(4, ROWS, LENGTH))

  @jax.jit
  def found(params, hidden):
    made, backward = jax.vjp(
      lambda params, hidden: readings(one, params, hidden, 8, temperature),
      params,
      hidden,
    )
    return made, backward(vocabulary_loss.Readings(*pull.astype(np.float32)))

  made, (by_params, by_hidden) = found(params, hidden)
  table = params['embedding']['embedding_DV'].astype(np.float64)
  z = hidden.astype(np.float64) @ table
  at = functools.partial(np.take_along_axis, z, axis=-1)
  want = vocabulary_loss.Readings(
    np.log(np.exp(z).sum(-1)),
    at(tokens[..., None])[..., 0],
    np.log(np.exp(z / temperature).sum(-1)),
    (at(ids) * values).sum(-1) / temperature,
  )
  for name, found_BL, want_BL in zip(want._fields, made, want):
    np.testing.assert_allclose(
      found_BL, want_BL, rtol=1e-5, atol=1e-6, err_msg=name
    )
  dz = pull[0][..., None] * np.exp(z - want.lse_BL[..., None])
  soft = np.exp(z / temperature - want.soft_lse_BL[..., None])
  dz += pull[2][..., None] * soft / temperature
  for place in np.ndindex(ROWS, LENGTH):
    dz[place][tokens[place]] += pull[1][place]
    np.add.at(dz[place], ids[place], pull[3][place] * values[place] / 2)
  np.testing.assert_allclose(by_hidden, dz @ table.T, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
    by_params['embedding']['embedding_DV'],
    np.einsum('bld,blv->dv', hidden, dz),
    rtol=1e-4,
    atol=1e-5,
  )


@pytest.mark.parametrize(
  'quantized, dtype',
  [
    ('int8', 'float32'),
    pytest.param('none', 'bfloat16', marks=pytest.mark.slow),
    pytest.param('int8', 'bfloat16', marks=pytest.mark.slow),
  ],
)
def test_chunks_are_the_whole(quantized, dtype):
  """Codes are per token; and a table in bf16 has a gradient summed in f32."""
  one = shallow.model(quantized, dtype, d_model=WIDTH, tied_embedding=False)
  params = shallow.params(one)

  @functools.partial(jax.jit, static_argnums=2)
  def of(params, hidden, chunk):
    def loss(params, hidden):
      found = readings(one, params, hidden, chunk)
      taught = found.soft_lse_BL - found.taught_BL
      return jnp.sum(found.lse_BL - found.target_BL + taught)

    return jax.value_and_grad(loss, (0, 1))(params, hidden)

  # 42 chunks: what is added up in bf16 is far off.
  chunk = 8 if dtype == 'float32' else 1
  value, (by_params, by_hidden) = of(params, drawn()[0], chunk)
  want_value, (want_by_params, want_by_hidden) = of(params, drawn()[0], 0)
  np.testing.assert_allclose(value, want_value, rtol=1e-6)
  limit = 1e-5 if dtype == 'float32' else 2**-7  # Two steps of bf16.
  found, want = (
    (by['embedding']['head_DV'], hidden)
    for by, hidden in (
      (by_params, by_hidden),
      (want_by_params, want_by_hidden),
    )
  )
  shallow.assert_close(found, want, limit)


def test_chunks_save_the_memory_of_logits_and_one_chunk_saves_none():
  vocab_size, length = 4096, 512
  one = shallow.model(vocab_size=vocab_size, d_model=WIDTH)
  params = shallow.params(one)
  hidden = np.zeros((1, length, WIDTH), np.float32)
  tokens = np.zeros((1, length), np.int32)

  def temporaries(chunk):
    def loss(params, hidden):
      found = vocabulary_loss.read(
        one, {'params': params}, hidden, tokens, chunk=chunk
      )
      return jnp.sum(found.lse_BL - found.target_BL)

    gradient = jax.jit(jax.grad(loss, (0, 1)))
    compiled = gradient.lower(params, hidden).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  whole = temporaries(0)
  assert whole > 4 * length * vocab_size  # The logits.
  assert temporaries(64) <= 0.35 * whole
  assert temporaries(length) > 0.9 * whole


@pytest.mark.slow
def test_a_step_in_chunks_is_the_whole_on_one_device():
  """A tree-like predecessor reaches into another device's part of the row."""
  batch = rows.packed_batch([[20, 12]] * 8, 32, 48)
  predecessor = batch.predecessor_BL.copy()
  predecessor[:, 19] = 2
  batch = batch._replace(predecessor_BL=predecessor).map(lambda x: x[None])

  def gradient(chunk, widths):
    mesh = meshes.mesh_of(*widths)
    one = shallow.experiment(chunk=chunk)
    params = params_lib.drawn(step_lib.model_of(one), mesh)
    of = jax.jit(step_lib.gradient_of(one, mesh))
    z = jnp.float32(1e-2), jnp.float32(1e-3)
    sums, found = jax.device_get(of(params, batch, 1, *z))
    return sums.loss, found

  loss, found = gradient(5, (2, 4))
  want_loss, want = gradient(0, (1, 1))
  np.testing.assert_allclose(loss, want_loss, rtol=1e-6)
  shallow.assert_close(found, want, 1e-5)


def test_a_breakdown_reads_each_tokens_loss():
  one = shallow.model()
  batch = rows.packed_batch([[12, 9]] * ROWS, LENGTH, shallow.VOCAB)

  def of_first_document(loss_BL, batch):
    is_first_BL = batch.start_BL < 12
    weight_BL = batch.weight_BL * is_first_BL
    return {'first': (jnp.sum(weight_BL * loss_BL), jnp.sum(weight_BL))}

  objective = language.make(chunk=8, breakdown=of_first_document)
  variables = {'params': shallow.params(one)}
  z = objective_lib.ZReg(0.0, 0.0)
  of = jax.jit(lambda batch: objective.loss(one, variables, batch, z))
  only = batch.weight_BL.copy()
  only[:, 12:] = 0
  sums, alone = of(batch), of(batch._replace(weight_BL=only))
  first, weight = sums.metrics['first']
  assert weight == alone.weight == only.sum()
  np.testing.assert_allclose(first, alone.loss, rtol=1e-6)


WIRE = {'all_gather', 'all_to_all', 'pmax', 'psum', 'reduce_scatter'}


def primitives(value, in_loop=False):
  """Yields (name, whether it is in a loop) of all that a jaxpr computes."""
  value = getattr(value, 'jaxpr', value)
  if isinstance(value, list | tuple):
    for one in value:
      yield from primitives(one, in_loop)
  for equation in getattr(value, 'eqns', ()):
    name = equation.primitive.name
    yield name, in_loop
    for part in equation.params.values():
      yield from primitives(part, in_loop or name == 'scan')


def test_nothing_crosses_between_devices_inside_the_loop():
  """The table is gathered once and its gradient reduced once."""
  one, mesh = shallow.model(), meshes.mesh_of(2, 4)
  params = shallow.params(one)
  rows_ = jax.sharding.PartitionSpec('fsdp')

  def loss(params, hidden, tokens):
    found = vocabulary_loss.read(
      one, {'params': params}, hidden, tokens, chunk=5
    )
    return jnp.sum(found.lse_BL - found.target_BL)

  specs = rules.specs(params, mesh)
  gradient = jax.shard_map(
    jax.grad(loss),
    mesh=mesh,
    in_specs=(specs, rows_, rows_),
    out_specs=specs,
    check_vma=False,
  )
  hidden, tokens = np.zeros((8, 32, 64), np.float32), np.zeros((8, 32), int)
  made = jax.make_jaxpr(gradient)(params, hidden, tokens)
  names = list(primitives(made))
  assert {'dot_general'} <= {name for name, in_loop in names if in_loop}
  sent = [(name, in_loop) for name, in_loop in names if name in WIRE]
  assert not [name for name, in_loop in sent if in_loop]
  assert {'all_gather', 'psum', 'pmax'} <= {name for name, _ in sent}
