"""A cache changes nothing: text in calls is the text's forward pass."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding import decoder as decoder_lib
from kaiju_jax.decoding import extend
from kaiju_jax.decoding import weights
from kaiju_jax.model import attention
from kaiju_jax.model import deployed
from kaiju_jax.model import layers
from kaiju_jax.model import transformer
from tests.decoding import toys

CONFIGS = {
  'plain': toys.config(),
  'bfloat16': toys.config(dtype='bfloat16', quantization=toys.int8()),
  'int8': toys.config(quantization=toys.int8(bungee=True)),
  'int8, a scale a channel': toys.config(
    quantization=toys.int8(kv_scale='channel')
  ),
  'int8, float queries': toys.config(quantization=toys.int8(qk='none')),
  'int8, and the embedding, untied': toys.config(
    quantization=toys.int8(embedding='int8'), tied_embedding=False
  ),
}


@functools.cache
def params_of(name: str):
  return toys.params(CONFIGS[name])


def run(decoder, rows, tokens_BL, splits) -> np.ndarray:
  """Returns logits of the rows' text, given in calls of these lengths."""
  logits, begin = [], 0
  for length in splits:
    call_BL = tokens_BL[:, begin : begin + length]
    logits.append(decoder.logits(decoder.extend_text(rows, call_BL)))
    begin += length
  return np.concatenate(logits, axis=1)


# Calls of one token, of several, longer than the window and than the ring.
SPLITS = (1, 30, 1, 1, 1, 7, 1, 7, 15)


@pytest.mark.parametrize('name', ['plain', 'int8', 'bfloat16'])
def test_the_reference_mode_has_the_forward_pass_s_bits(name):
  config = CONFIGS[name]
  tokens_BL = toys.tokens(config, 2)
  want = toys.forward(params_of(name), config, tokens_BL, 'reference')
  decoder = decoder_lib.Decoder(
    params_of(name), config, rows=4, length=64, page=8, mode='reference'
  )
  # Rows and pages out of order, with another text between them.
  rows = [decoder.open() for _ in range(4)]
  decoder.extend_text([rows[1]], tokens_BL[:1, :30][:, ::-1].copy())
  decoder.close(rows[0])
  decoder.close(rows[2])
  rows = [rows[3], decoder.open()]
  got = run(decoder, rows, tokens_BL, SPLITS)
  np.testing.assert_array_equal(got, want)
  # Once more in other calls.
  for row in rows:
    decoder.close(row)
  rows = [decoder.open(), decoder.open()]
  got = run(decoder, rows, tokens_BL, (30, 7, 1, 15, 1, 1, 7, 1, 1))
  np.testing.assert_array_equal(got, want)


def test_fast_logits_are_the_forward_pass_s():
  config = CONFIGS['plain']
  tokens_BL = toys.tokens(config, 2)
  want = toys.forward(params_of('plain'), config, tokens_BL)
  decoder = decoder_lib.Decoder(
    params_of('plain'), config, rows=2, length=64, page=8
  )
  rows = [decoder.open(), decoder.open()]
  got = run(decoder, rows[::-1], tokens_BL, SPLITS)
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())


def loss(logits_BLV, tokens_BL) -> float:
  log_p = jax.nn.log_softmax(logits_BLV[:, :-1])
  return -np.mean(np.take_along_axis(log_p, tokens_BL[:, 1:, None], axis=-1))


@pytest.mark.parametrize('name', [name for name in CONFIGS if 'int8,' in name])
def test_fast_int8_loss_is_the_forward_pass_s(name):
  config = CONFIGS[name]
  tokens_BL = toys.tokens(config, 4)
  want = toys.forward(params_of(name), config, tokens_BL)
  decoder = decoder_lib.Decoder(
    params_of(name), config, rows=4, length=64, page=8
  )
  rows = [decoder.open() for _ in range(4)]
  got = run(decoder, rows, tokens_BL, (30, 1, 1, 1, 30, 1))
  want_loss, got_loss = loss(want, tokens_BL), loss(got, tokens_BL)
  # A code that falls to the other side is a large step in a model of 32
  # dimensions: a random one's loss moves by a few thousandths.
  assert abs(got_loss / want_loss - 1) < 5e-3
  # Greedy tokens differ only where the two best are nearer than the two runs.
  difference_BL = np.abs(got - want).max(axis=-1)
  best_BL2 = np.sort(want, axis=-1)[..., -2:]
  is_clear_BL = best_BL2[..., 1] - best_BL2[..., 0] > 2 * difference_BL
  same_BL = got.argmax(axis=-1) == want.argmax(axis=-1)
  assert is_clear_BL.mean() > 0.5
  assert same_BL[is_clear_BL].all()


def test_the_cache_holds_the_codes_of_training():
  config = CONFIGS['int8']
  tokens_BL = toys.tokens(config, 2)
  decoder = decoder_lib.Decoder(
    params_of('int8'), config, rows=2, length=64, page=8, mode='reference'
  )
  rows = [decoder.open(), decoder.open()]
  run(decoder, rows, tokens_BL, SPLITS)
  want = _made(params_of('int8'), config, tokens_BL)
  for kind, owners in ('local', (0, 3)), ('global', (2,)):
    tables = decoder.cache.kinds[kind]
    held = np.arange(64 - 11 + 1 if kind == 'local' else 0, 64)
    for place, owner in enumerate(owners):
      for pools, made in zip((tables.k, tables.v), want[owner]):
        for row_of_batch, row in enumerate(rows):
          page, slot = np.divmod(held - int(tables.first_R[row]), 8)
          at = tables.table_RN[row][page], slot
          np.testing.assert_array_equal(
            pools[place].codes[at], made.codes[row_of_batch, held]
          )
          # What is looked at makes another program, to the scales' last bits.
          np.testing.assert_allclose(
            pools[place].scales[at], made.scales[row_of_batch, held], rtol=1e-6
          )


def _made(params, config, tokens_BL):
  """Each layer's keys and values of the whole rows, by the forward pass."""
  model = transformer.Transformer(config, unstacked=True)
  length = tokens_BL.shape[1]
  visibility = visibility_lib.concatenate(
    [visibility_lib.causal(length)] * len(tokens_BL)
  )

  def run(params, tokens_BL, visibility):
    _, seen = model.apply(
      {'params': params},
      tokens_BL,
      visibility,
      method='hidden',
      capture_intermediates=lambda module, _: isinstance(
        module, attention.Attention
      ),
      mutable=['intermediates'],
    )
    return seen['intermediates']['blocks']

  jitted = jax.jit(run, compiler_options=extend.REFERENCE_OPTIONS)
  blocks = jitted(weights.unstacked(params, config), tokens_BL, visibility)
  return {
    owner: blocks[f'layer_{owner}']['attention']['__call__'][0][1]
    for owner in layers.owners(config.layers())
  }


def test_an_export_decodes_as_its_checkpoint():
  config = CONFIGS['int8']
  tokens_BL = toys.tokens(config, 1, 24)
  logits = []
  exported = deployed.quantized(params_of('int8'), config)
  for params in params_of('int8'), exported:
    decoder = decoder_lib.Decoder(params, config, rows=1, length=64, page=8)
    logits.append(run(decoder, [decoder.open()], tokens_BL, (20, 1, 1, 1, 1)))
  np.testing.assert_array_equal(*logits)


def test_padding_and_idle_rows_leave_no_trace():
  config = CONFIGS['plain']
  tokens_BL = toys.tokens(config, 3)
  want = toys.forward(params_of('plain'), config, tokens_BL)
  decoder = decoder_lib.Decoder(
    params_of('plain'), config, rows=3, length=64, page=8
  )
  rows = [decoder.open() for _ in range(3)]
  at = np.zeros(3, int)
  rng = np.random.default_rng(0)
  while (at < 60).any():
    count_B = np.minimum(rng.integers(0, 5, 3), 60 - at)
    call_BL = np.full((3, 4), 60, np.int32)
    for b, count in enumerate(count_B):
      call_BL[b, :count] = tokens_BL[b, at[b] : at[b] + count]
    got = decoder.logits(decoder.extend_text(rows, call_BL, count_B))
    for b, count in enumerate(count_B):
      np.testing.assert_allclose(
        got[b, :count], want[b, at[b] : at[b] + count], atol=1e-4
      )
    at += count_B


def test_rows_open_and_close_without_compiling():
  config = CONFIGS['plain']
  tokens_BL = toys.tokens(config, 2)
  decoder = decoder_lib.Decoder(
    params_of('plain'), config, rows=2, length=64, page=8
  )

  def once():
    first, second = decoder.open(20), decoder.open()
    decoder.extend_text([first, second], tokens_BL[:, :12])
    decoder.close(first)
    decoder.extend_text([second], tokens_BL[1:, 12:13])
    decoder.close(second)

  once()
  jitted = decoder._text, decoder._give_pages
  compiled = [f._cache_size() for f in jitted]
  once()
  assert [f._cache_size() for f in jitted] == compiled


def test_a_step_copies_no_pool_and_no_embedding():
  """By the compiled program: nothing of their sizes is copied or transposed."""
  config = toys.config(vocab_size=4096, quantization=toys.int8())
  decoder = decoder_lib.Decoder(
    toys.params(config), config, rows=8, length=64, page=16
  )
  arguments = (
    decoder.params,
    decoder.cache,
    np.arange(8, dtype=np.int32),
    np.zeros((8, 1), np.int32),
    np.ones(8, np.int32),
  )
  compiled = decoder._text.lower(*arguments).compile()
  large = ('s8[32,16,16]', 's8[512,16]', 'f32[4096,32]', 'f32[32,4096]')
  for line in compiled.as_text().splitlines():
    if ' copy(' in line or ' transpose(' in line:
      assert not any(shape in line for shape in large), line


def test_extend_wants_unstacked_layers():
  config = CONFIGS['plain']
  model = transformer.Transformer(config)
  with pytest.raises(ValueError, match='unstacked=True'):
    model.apply(
      {'params': params_of('plain')},
      jnp.zeros((1, 1), jnp.int32),
      None,
      {},
      method='extend',
    )


def test_bad_input_is_refused_before_anything_runs():
  config = CONFIGS['plain']
  make = functools.partial(
    decoder_lib.Decoder, params_of('plain'), config, rows=2, page=8
  )
  with pytest.raises(ValueError, match=r'mode=.exact.: expected one of'):
    make(length=64, mode='exact')
  with pytest.raises(ValueError, match=r'length=65: .* model.max_length=64'):
    make(length=65)
  decoder = make(length=32)
  row = decoder.open()
  tokens_BL = np.zeros((1, 33), np.int32)
  with pytest.raises(ValueError, match='gets 33: it was opened for 32'):
    decoder.extend_text([row], tokens_BL)
  with pytest.raises(ValueError, match=r'row=1: is not open; open are \(0,\)'):
    decoder.extend_text([1], tokens_BL[:, :1])
  with pytest.raises(ValueError, match=r'rows=\[0, 0\]: expected 2 different'):
    decoder.extend_text([0, 0], np.zeros((2, 1), np.int32))
  with pytest.raises(ValueError, match=r'tokens_BL\[0, 1\]=61: .* 0…60'):
    decoder.extend_text([row], np.array([[0, 61]]))
  with pytest.raises(ValueError, match=r'count_B\[0\]=2: expected 0…1'):
    decoder.extend_text([row], tokens_BL[:, :1], [2])
  assert decoder.length_of(row) == 0
