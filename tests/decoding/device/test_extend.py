"""Text in calls is the text's forward pass, up to the order of sums.

`test_reference.py` holds the reference mode, which has the same bits.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import reference
from kaiju_jax.decoding.device import weights
from kaiju_jax.model import attention
from kaiju_jax.model import block
from kaiju_jax.model import deployed
from kaiju_jax.model import layers
from kaiju_jax.model import transformer
from tests.decoding import toys

CONFIGS = {
  'plain': toys.config(layout='L0 L0 G2'),
  'int8': toys.config(layout='L0 G1', quantization=toys.int8(bungee=True)),
  'int8, a scale per channel': toys.config(
    layout='L0 G1', quantization=toys.int8(kv_scale='channel')
  ),
  'int8, float queries, and the embedding, untied': toys.config(
    layout='L0 G1',
    quantization=toys.int8(qk='none', embedding='int8'),
    tied_embedding=False,
  ),
}


@functools.cache
def params_of(name: str):
  return toys.drawn(CONFIGS[name], scale=0.18)


# Quick tests compare an int8 model's loss, and the bits of the reference mode.
@pytest.mark.slow
def test_fast_logits_are_the_forward_pass_s():
  """Through short calls, long ones, and rows that take turns and stand idle."""
  config = CONFIGS['plain']
  length = 48
  tokens_BL = toys.tokens(config, 3, length)
  want = toys.forward(params_of('plain'), config, tokens_BL)
  decoder = decoder_lib.Decoder(
    params_of('plain'), config, rows=4, length=length, page=8
  )
  rows = [decoder.open() for _ in range(4)][::-1]
  decoder.close(rows.pop(1))
  at = np.zeros(3, int)
  rng = np.random.default_rng(0)

  def call(width, least=0):
    count_B = np.minimum(rng.integers(least, width + 1, 3), length - at)
    call_BL = rng.integers(0, config.vocab_size, (3, width))
    for b, count in enumerate(count_B):
      call_BL[b, :count] = tokens_BL[b, at[b] : at[b] + count]
    got = decoder.logits(decoder.extend_text(rows, call_BL, count_B))
    for b, count in enumerate(count_B):
      np.testing.assert_allclose(
        got[b, :count],
        want[b, at[b] : at[b] + count],
        rtol=0,
        atol=1e-4 * np.abs(want).max(),
      )
    at[:] += count_B

  # The window is 11 and the ring 24 slots: the long call turns it twice.
  for _ in range(6):
    call(1)
  call(35, least=32)
  while (at < length).any():
    call(1)
  # Rows close and open, and no shape of a call compiles again.
  compiled = decoder._text._cache_size(), decoder._give_pages._cache_size()
  assert compiled[0] == 2
  for row in rows:
    decoder.close(row)
  rows = [decoder.open(20) for _ in range(3)]
  at[:] = 0
  call(1, least=1)
  after = decoder._text._cache_size(), decoder._give_pages._cache_size()
  assert after == compiled


def loss(logits_BLV, tokens_BL) -> float:
  log_p = jax.nn.log_softmax(logits_BLV[:, :-1])
  return -np.mean(np.take_along_axis(log_p, tokens_BL[:, 1:, None], axis=-1))


@pytest.mark.parametrize(
  'name',
  [
    'int8, a scale per channel',
    pytest.param(
      'int8, float queries, and the embedding, untied', marks=pytest.mark.slow
    ),
  ],
)
def test_fast_int8_loss_is_the_forward_pass_s(name):
  config = CONFIGS[name]
  tokens_BL = toys.tokens(config, 4)
  want = toys.forward(params_of(name), config, tokens_BL)
  decoder = decoder_lib.Decoder(
    params_of(name), config, rows=4, length=64, page=8
  )
  rows = [decoder.open() for _ in range(4)]
  hidden = [
    decoder.extend_text(rows, tokens_BL[:, begin : begin + 4])
    for begin in range(0, 64, 4)
  ]
  got = np.asarray(decoder.logits(jnp.concatenate(hidden, axis=1)))
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


# Quick tests compare logits, bit for bit, that other codes would change.
@pytest.mark.slow
def test_the_cache_holds_the_codes_of_training():
  config = CONFIGS['int8']
  tokens_BL = toys.tokens(config, 2)
  decoder = decoder_lib.Decoder(
    params_of('int8'), config, rows=2, length=64, page=8, mode='reference'
  )
  rows = [decoder.open(), decoder.open()]
  for begin in range(0, 64, 4):
    decoder.extend_text(rows, tokens_BL[:, begin : begin + 4])
  want = _made(params_of('int8'), config, tokens_BL)
  for kind, owner in ('local', 0), ('global', 1):
    tables = decoder.cache.kinds[kind]
    held = np.arange(64 - 11 + 1 if kind == 'local' else 0, 64)
    for pools, made in zip((tables.k, tables.v), want[owner]):
      for row_of_batch, row in enumerate(rows):
        page, slot = np.divmod(held - int(tables.first_R[row]), 8)
        at = tables.table_RN[row][page], slot
        for got, wanted in zip(pools[0][:2], made[:2]):
          np.testing.assert_array_equal(got[at], wanted[row_of_batch, held])


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
      capture_intermediates=lambda module, name: (
        isinstance(module, attention.Attention) and name == '__call__'
      ),
      mutable=['intermediates'],
    )
    return seen['intermediates']['blocks']

  jitted = reference.jit(run)
  blocks = jitted(weights.unstack(params, config), tokens_BL, visibility)
  return {
    owner: blocks[f'layer_{owner}']['attention']['__call__'][0][1]
    for owner in layers.owners(config.layers())
  }


@pytest.mark.parametrize('matmul', ['int8', 'none'])
def test_decoding_reads_an_export_as_its_checkpoint(matmul):
  quantization = toys.int8(matmul=matmul, embedding='int8', bungee=True)
  config = toys.config(layout='L0', dtype='bfloat16', quantization=quantization)
  masters = toys.drawn(config)
  exported = deployed.quantize(masters, config)
  jax.tree.map(
    np.testing.assert_array_equal,
    weights.ready(masters, config),
    weights.ready(exported, config),
  )


@pytest.mark.versions
def test_a_step_copies_no_pool_and_no_embedding():
  """By the compiled program: nothing of their sizes is copied or transposed."""
  config = toys.config(
    vocab_size=4096, layout='L0 G1', quantization=toys.int8()
  )
  decoder = decoder_lib.Decoder(
    toys.drawn(config), config, rows=8, length=64, page=16
  )
  arguments = (
    decoder.params,
    decoder.cache,
    {
      'local': np.zeros((8, decoder.network.pools['local'].row_pages), np.int32)
    },
    np.arange(8, dtype=np.int32),
    np.zeros((8, 1), np.int32),
    np.ones(8, np.int32),
  )
  one, ring = np.zeros((2, 1), np.int32), np.zeros((2, 3), np.int32)
  copy = {'local': one, 'global': one}
  table = decoder.account.table(0)
  programs = (
    decoder._text.lower(*arguments),
    decoder._copy_pages.lower(*arguments[:2], copy),
    decoder._lend.lower(*arguments[:2], np.int32(0), table, {'local': ring}),
  )
  large = (
    's8[32,16,16]',
    's8[512,16]',
    's8[16,16,16]',
    's8[256,16]',
    'f32[4096,32]',
    'f32[32,4096]',
  )
  for program in programs:
    for line in program.compile().as_text().splitlines():
      if ' copy(' in line or ' transpose(' in line:
        assert not any(shape in line for shape in large), line


def test_extend_refuses_layers_of_a_scan():
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


@pytest.mark.parametrize(
  ('layout', 'kinds', 'widths'),
  [
    ('L0 L0 L0', 2, (1,)),
    pytest.param(
      'L0 L0 G2 L3 N4 N5 L3', 4, (9, 1), marks=pytest.mark.slow, id='all'
    ),
  ],
)
def test_layers_of_a_kind_are_traced_once_and_compute_the_same_bits(
  monkeypatch, layout, kinds, widths
):
  """A layer's own call is one of a program's, and no bit tells."""
  config = toys.config(
    layout=layout, quantization=toys.int8(), feedforward='relu2'
  )
  params = toys.drawn(config)
  tokens_BL = np.random.default_rng(0).integers(0, 61, (2, 9))

  def run():
    decoder = decoder_lib.Decoder(params, config, rows=2, length=48, page=8)
    rows = [decoder.open(), decoder.open()]
    calls = (*widths, 1)  # The last one reads what the others wrote.
    return [
      np.asarray(decoder.extend_text(rows, tokens_BL[:, :width]))
      for width in calls
    ]

  traced = []
  layer = block.TransformerLayer.__call__

  def call(self, *arguments):
    traced.append(self.layer)
    return layer(self, *arguments)

  monkeypatch.setattr(block.TransformerLayer, '__call__', call)
  shared = run()
  # Each width of a call, and layers with keys of their own or another's.
  assert len(traced) == len(widths) * kinds, traced
  monkeypatch.setattr(block.Block, '_shares_traces', lambda *_: False)
  del traced[:]
  apart = run()
  assert len(traced) == len(widths) * len(layout.split())
  jax.tree.map(np.testing.assert_array_equal, shared, apart)
