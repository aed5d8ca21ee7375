"""Text decoded on a mesh is that of one device: to the bit, or nearly.

In the reference mode a model of int8 products has the bits of one device: no
slice, scale or mask can be wrong unseen. The fast mode adds floats in another
order, so that it is held to a tolerance where nothing is coded. The bugs that
these tests must see are planted in `test_mesh_contrasts.py`.
"""

import dataclasses

import jax
import numpy as np
import pytest

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.device import placement
from kaiju_jax.kernels import dispatch
from kaiju_jax.model import paging
from kaiju_jax.model import presets
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from tests.decoding import mesh_lives
from tests.decoding import toys

slow = pytest.mark.slow
GATED = toys.int8(clamp_hidden='none')


def bits(got, want):
  np.testing.assert_array_equal(got, want)


def near(got, want):
  got, want = (np.asarray(jax.nn.log_softmax(x)) for x in (got, want))
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
  ('is_split', 'tensor', 'widths', 'changes'),
  [
    (True, 2, (5,), {'layout': 'L0 G1'}),
    (False, 2, (5,), {'layout': 'L0 G1'}),
    *(
      pytest.param(tensor != 4, tensor, (32, 5, 1), changes, marks=slow)
      for tensor, changes in (
        (8, {}),
        (4, {'layout': 'L0 G1 L2 G1'}),
        (2, {'dtype': 'bfloat16'}),
        (8, {'num_kv_heads': 2}),
        (
          2,
          {'num_kv_heads': 4, 'feedforward': 'swiglu', 'quantization': GATED},
        ),
        (8, {'layout': 'L0+2 L0+2 G2s G2s'}),
      )
    ),
    *(
      pytest.param(
        is_split, 8, (5,), {'quantization': toys.int8(**arm)}, marks=slow
      )
      for is_split, arm in (
        (True, {'kv_scale': 'channel', 'embedding': 'int8'}),
        *(
          (
            is_split,
            {'clamp_hidden': 'input_std', 'clamp_hidden_k': 0.9}
            | {'clamp_input': 'input_std', 'clamp_input_k': 1.2},
          )
          for is_split in (True, False)
        ),
      )
    ),
  ],
)
def test_the_reference_mode_has_the_bits_of_one_device(
  monkeypatch, is_split, tensor, widths, changes
):
  mesh_lives.split_tokens(monkeypatch, is_split)
  config = mesh_lives.config(**changes)
  bits(*mesh_lives.compare(config, tensor, 'reference', widths))


@pytest.mark.parametrize(
  ('is_split', 'tensor', 'widths', 'changes'),
  [
    (True, 8, (5,), {'layout': 'L0+2 G1s'}),
    *(
      pytest.param(is_split, tensor, (5, 1), changes, marks=slow)
      for is_split, tensor, changes in (
        (True, 2, {}),
        (False, 8, {'num_kv_heads': 2}),
        (True, 8, {'num_kv_heads': 8, 'qk_norm': 'head'}),
        (False, 8, {'num_kv_heads': 8, 'qk_norm': 'head'}),
        (True, 4, {'num_kv_heads': 4, 'norms': 'both', 'qkv_bias': True}),
      )
    ),
  ],
)
def test_log_probabilities_of_floats_are_those_of_one_device(
  monkeypatch, is_split, tensor, widths, changes
):
  mesh_lives.split_tokens(monkeypatch, is_split)
  config = mesh_lives.config(quantization_config.none(), **changes)
  near(*mesh_lives.compare(config, tensor, 'fast', widths))


@slow
def test_the_reference_mode_has_one_order_of_sums_for_all_chunks(monkeypatch):
  """Of floats, on one mesh: whichever devices sum a token, one or all."""
  config, found = mesh_lives.config(quantization_config.none()), []
  for is_split, widths in ((True, (32, 5, 1)), (False, (5,))):
    mesh_lives.split_tokens(monkeypatch, is_split)
    decoder = mesh_lives.decoder(config, 4, 'reference')
    found.append(mesh_lives.Life(decoder, widths).run())
  bits(*found)


@slow
@pytest.mark.parametrize('is_split', [True, False])
def test_codes_seldom_move_a_log_probability(monkeypatch, is_split):
  """Held to the reference mode's bits.

  In this life the fast mode of one device rounds a tie to another code than the
  reference mode does, and with it half of the log-probabilities by up to .12.
  """
  mesh_lives.split_tokens(monkeypatch, is_split)
  config = mesh_lives.config()
  got = mesh_lives.Life(mesh_lives.decoder(config, 8), (5,)).run()
  want = mesh_lives.want(config, 'reference', (5,))
  got, want = (np.asarray(jax.nn.log_softmax(x)) for x in (got, want))
  moved = np.abs(got - want).max(-1)
  assert moved.max() < 3e-3
  assert (moved < 1e-5).mean() >= 0.95


@pytest.mark.parametrize('heads', [1, 2])
def test_a_call_moves_what_is_smaller_keys_or_queries(heads):
  """From 3 tokens on a ring's keys, from 29 those of 8,192 slots."""
  config = dataclasses.replace(presets.preset('110b'), num_kv_heads=heads)
  pools = paging.pools(config.layers(), 1, 8192, heads=heads, devices=8)
  network = extend.Network(transformer.Transformer(config), pools)
  gathered = [network.list_gathered(size) for size in range(99)]
  # With two heads a device has the queries of half of the heads.
  assert [sum(kind not in x for x in gathered) for kind in pools] == (
    [3, 29] if heads == 1 else [6, 58]
  )
  assert network._replace(reference_length=8).list_gathered(1) == {*pools}
  whole = {kind: dataclasses.replace(x, stripes=1) for kind, x in pools.items()}
  assert not network._replace(pools=whole).list_gathered(99)


def test_a_mesh_that_cannot_divide_the_model_is_refused():
  for changes, page, message in (
    ({'num_heads': 9}, 16, r'num_heads=9: .*mesh.tensor=2'),
    ({'d_ff': 63}, 16, 'd_ff=63'),
    ({'vocab_size': 61}, 16, 'vocab_size=61'),
    ({'num_heads': 6, 'num_kv_heads': 3}, 16, 'num_kv_heads=3: must divide'),
    ({'qk_norm': 'all'}, 16, "qk_norm='all'"),
    ({}, 5, 'page=5: must be a multiple of 2'),
  ):
    with pytest.raises(ValueError, match=message):
      decoder_lib.Decoder(
        None,
        mesh_lives.config(**changes),
        rows=1,
        length=8,
        page=page,
        mesh=placement.make(2),
      )
  pages = pytest.raises(ValueError, match='page=32: must be at least 64')
  with dispatch.compiling_for('tpu'), pages:
    decoder_lib.Decoder(
      None,
      mesh_lives.config(),
      rows=1,
      length=8,
      page=32,
      mesh=placement.make(2),
    )
  with pytest.raises(ValueError, match=r'tensor=9: must be 1…8, .*count=9'):
    placement.make(9)
