"""A deep model's calls, in programs of a layer each, are a forward pass's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.device import layered
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.experiments.benchmarks.parts import compilations
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.int8_matmul import blocks as int8_matmul
from kaiju_jax.model import paging
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from tests.decoding import toys

CHUNK = 8
GREEDY = sampling.Sampling(temperature=0)
CONFIG = toys.config(layout='L0 L0 G2 L3')


# Two repeats of a local layer, one that reads it, and a global one; its hidden
# activations have column sums.
LOOPED = toys.config(
  layout='L0 L0 G2 L3 L3 G5',
  d_model=64,
  num_kv_heads=2,
  num_heads=4,
  head_dim=64,
  d_ff=128,
  quantization=quantization_config.QuantizationConfig(kv_scale='token'),
)


def make_decoder(config, page):
  return decoder_lib.Decoder(
    toys.drawn(config), config, rows=2, length=48, page=page
  )


def make(monkeypatch):
  monkeypatch.setattr(layered, '_DEEP', 1)
  decoder = make_decoder(CONFIG, page=4)
  return engine_lib.Engine(decoder, chunk=CHUNK)


def run(engine):
  """Returns texts of several chunks and their results, two at once."""
  rng = np.random.default_rng(0)
  asked = [
    engine.submit(
      request_lib.Request(
        rng.integers(4, 61, length), 12, GREEDY, scores_prompt=True
      )
    )
    for length in (29, 5)
  ]
  while not engine.is_idle:
    engine.advance()
  return [(one.text().tokens.tolist(), one.result()) for one in asked]


def test_programs_of_a_layer_do_what_the_forward_pass_does(monkeypatch):
  lowered = []
  lower = layered.Layered.lower
  monkeypatch.setattr(
    layered.Layered,
    'lower',
    lambda *given: lowered.append(lower(*given)) or lowered[-1],
  )
  many = make(monkeypatch)
  many.warm(scores=True, puts_off=True)
  while many.rounds.waiting:
    many.rounds.compile_next()
  run(many)
  with compilations.record() as seen:
    found = run(many)
  assert not seen
  rows_BL = np.zeros((2, 48), np.int32)
  for row_L, (text, _) in zip(rows_BL, found, strict=True):
    row_L[: len(text)] = text
  logits_BLV = toys.forward(toys.drawn(CONFIG), CONFIG, rows_BL)
  log_BLV = np.asarray(jax.nn.log_softmax(logits_BLV))
  for log_LV, (text, got) in zip(log_BLV, found, strict=True):
    log_LV = log_LV[: len(text) - 1]
    assert text[-12:] == got.tokens.tolist() == log_LV[-12:].argmax(1).tolist()
    np.testing.assert_allclose(
      [*got.prompt_log_probabilities, *got.log_probabilities],
      log_LV[np.arange(len(log_LV)), text[1:]],
      rtol=1e-4,
      atol=1e-4,
    )
  # A local layer that makes keys, one that reads another's, and a global one.
  assert len(lowered) == 3  # A step, a prefill and a scored one.
  for each in lowered:
    assert len(each.order) == 1 + len(CONFIG.layers()) + 1
    assert len({id(x) for x in each.order}) == 1 + 3 + 1


def test_programs_of_a_layer_are_for_deep_models_on_one_cpu(monkeypatch):
  network = extend.Network(transformer.Transformer(CONFIG, unstacked=True), {})
  for is_layered, layers, platform, changes in (
    (True, 4, 'cpu', {}),
    (False, 5, 'cpu', {}),
    (False, 4, 'gpu', {}),
    (False, 4, 'cpu', {'devices': 2}),
    (False, 4, 'cpu', {'reference_length': 48}),
  ):
    monkeypatch.setattr(layered, '_DEEP', layers)
    given = network._replace(**changes), lambda f, **_: f, None, None
    with dispatch.compiling_for(platform):
      chosen = layered.choose(*given)
    assert isinstance(chosen, layered.Layered) is is_layered


@pytest.fixture(name='_numba')
def _find_numba():
  return int8_matmul.numba_cpu() or pytest.skip('needs numba and AVX2')


def test_a_loop_over_layers_has_the_bits_of_their_programs(_numba):
  rng = np.random.default_rng(0)
  tokens_NBL = rng.integers(4, 61, (20, 2, 1), np.int32)
  found = []
  for make_calls in layered.loop, layered.Layered:
    decoder = make_decoder(LOOPED, page=16)
    call = make_calls(
      decoder.network,
      decoder.jit,
      lambda state, *given: given,
      lambda params, cache, state, hidden_BLD, *given: (state, hidden_BLD),
    )
    rows, hidden_NBLD = [decoder.open(), decoder.open()], []
    for n, tokens_BL in enumerate(tokens_NBL):
      count_B = np.int32([1, n % 3 > 0])  # The second row has fewer tokens.
      given = np.int32(rows), tokens_BL, count_B, None
      appends = dict(zip(rows, count_B.tolist()))
      state = jnp.zeros(())
      _, hidden_BLD = decoder.run(call, state, *given, appends=appends)
      hidden_NBLD.append(hidden_BLD)
    found.append((hidden_NBLD, decoder.cache))
  jax.tree.map(np.testing.assert_array_equal, *found)
  assert len({x.tobytes() for x in map(np.asarray, found[0][0])}) == 20


@pytest.mark.parametrize(
  'changes',
  (
    {'d_ff': 96},
    {'head_dim': 32},
    {'quantization': quantization_config.for_serving('weights')},
    {'quantization': quantization_config.for_serving(kv='none')},
    {'layout': 'L0 L1 G2 L3 L4 L5 G6'},
  ),
  ids=str,
)
def test_what_kernels_cannot_read_or_does_not_repeat_is_no_loop(
  _numba, monkeypatch, changes
):
  monkeypatch.setattr(layered, '_DEEP', 1)

  def can_loop(config):
    pools = paging.pools(config.layers(), 2, 48, page=16, heads=2)
    model = transformer.Transformer(config, unstacked=True)
    made = layered.choose(
      extend.Network(model, pools), jax.jit, None, None, is_step=True
    )
    return not isinstance(made, layered.Layered)

  assert can_loop(LOOPED)
  assert not can_loop(dataclasses.replace(LOOPED, **changes))
