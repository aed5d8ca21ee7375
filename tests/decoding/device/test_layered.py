"""A deep model's calls, in programs of a layer each, are a forward pass's."""

import jax
import numpy as np

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import layered
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.experiments.benchmarks.parts import compilations
from tests.decoding import toys

CHUNK = 8
GREEDY = sampling.Sampling(temperature=0)
CONFIG = toys.config(layout='L0 L0 G2 L3')


def make(monkeypatch):
  monkeypatch.setattr(layered, '_DEEP', 1)
  decoder = decoder_lib.Decoder(
    toys.drawn(CONFIG), CONFIG, rows=2, length=48, page=4
  )
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
