"""Tables of the vocabulary that lie as [V, D] are the same tables."""

import jax
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import packed
from kaiju_jax.decoding.device import weights
from kaiju_jax.model import embedding
from kaiju_jax.model import transformer
from tests.decoding import toys


def both(config):
  """Returns the embedding's parameters as they were trained, and turned."""
  masters = toys.drawn(config)
  return tuple(
    {'params': weights.ready(masters, config, turned=turned)['embedding']}
    for turned in (False, True)
  )


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('tied', [True, False])
def test_a_turned_table_looks_up_the_same_and_its_logits_differ_by_rounding(
  tied, dtype
):
  config = toys.config(tied_embedding=tied, dtype=dtype)
  whole, turned = both(config)
  stems = ['embedding'] if tied else ['embedding', 'head']
  assert sorted(turned['params']) == [f'{stem}_VD' for stem in stems]
  sizes = [sum(x.size for x in jax.tree.leaves(one)) for one in (whole, turned)]
  assert sizes[0] == sizes[1]
  model = embedding.Embedding(config)
  # Beyond both ends, too: those are other devices' entries.
  tokens_BL = np.arange(-2, config.vocab_size + 3)[None]
  np.testing.assert_array_equal(
    model.apply(turned, tokens_BL), model.apply(whole, tokens_BL)
  )
  head = model.apply(turned, method='head')
  np.testing.assert_array_equal(head, model.apply(whole, method='head'))
  rng = np.random.default_rng(3)
  # A product of one row, of a few, and of many goes another way each.
  for rows in 1, 8, 40:
    hidden_BLD = rng.normal(size=(rows, 1, config.d_model)).astype(dtype)
    wanted, found = (
      np.asarray(model.apply(one, hidden_BLD, method='logits'))
      for one in (whole, turned)
    )
    terms = np.abs(hidden_BLD.astype(np.float32)) @ np.abs(
      np.asarray(head, np.float32)
    )
    # Sums of D terms in another order.
    bound = config.d_model * np.finfo(np.float32).eps * terms
    assert found.shape == wanted.shape and found.dtype == np.float32
    assert np.all(np.abs(found - wanted) <= bound)


@pytest.mark.parametrize('tied', [True, False])
def test_turned_codes_have_the_same_bits(tied):
  quantization = toys.int8(embedding='int8')
  # A layer has all that is turned.
  config = toys.config(
    layout='L0', tied_embedding=tied, quantization=quantization
  )
  masters = toys.drawn(config)
  whole, turned = (
    weights.ready(masters, config, turned=turned) for turned in (False, True)
  )
  names = [
    path[-2].key
    for path, x in jax.tree_util.tree_leaves_with_path(turned)
    if x.dtype == np.int8
  ]
  assert names and all(name[-1] in 'DFK' for name in names)
  again = weights.ready(turned, config, turned=True)
  jax.tree.map(np.testing.assert_array_equal, again, turned)
  # Op by op, each length would compile some two hundred programs.
  apply = jax.jit(transformer.Transformer(config, unstacked=True).apply)
  rng = np.random.default_rng(4)
  # A loop of XLA's own, the weight in front, and the weight behind.
  for length in 1, 8, 40:
    tokens_BL = rng.integers(-1, config.vocab_size + 1, (1, length))
    wanted, found = (
      apply({'params': one}, tokens_BL, visibility.causal(length))
      for one in (whole, turned)
    )
    np.testing.assert_array_equal(found, wanted)


def test_the_reference_mode_keeps_the_order_of_training():
  config = toys.config(layout='L0')
  names = {}
  for mode in 'fast', 'reference':
    decoder = decoder_lib.Decoder(
      toys.drawn(config), config, rows=1, length=16, page=16, mode=mode
    )
    names[mode] = list(decoder.params['embedding'])
  is_cpu = jax.default_backend() == 'cpu'
  assert names['fast'] == ['embedding_VD' if is_cpu else 'embedding_DV']
  assert names['reference'] == ['embedding_DV']


def test_a_packed_tree_has_the_same_leaves_and_few_arrays():
  tree = {
    'scalar': np.float32(2.5),
    'codes': np.arange(6, dtype=np.int8).reshape(2, 3),
    'gain': np.arange(5, dtype=np.float32),
    'weight': np.ones((256, 256), np.float32),
    'half': np.full(3, 0.5, np.float16),
    'scales': {'b': np.arange(12, dtype=np.float32).reshape(3, 1, 4)},
  }
  made = packed.pack(tree)
  assert made.floats_N.shape == (1 + 5 + 12,)
  # Codes, half floats, and what is as large as a weight are not copied.
  left = tree['codes'], tree['half'], tree['weight']
  assert all(x is y for x, y in zip(made.others, left, strict=True))
  found = jax.jit(packed.unpack)({'in': made, 'beside': tree['gain']})
  jax.tree.map(
    np.testing.assert_array_equal, found, {'in': tree, 'beside': tree['gain']}
  )
  codes = {'codes': tree['codes']}
  assert packed.unpack(packed.pack(codes)) == codes
