"""Searches, heads, masks and scores on a mesh: within 1e-5 of one device.

In floats, where nothing is coded. Each engine's calls have the same shapes.
"""

import jax
import numpy as np
import pytest

from kaiju_jax.data import tokenizer
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import layered
from kaiju_jax.decoding.device import placement
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from tests.decoding import mesh_lives
from tests.decoding import toys

Request, Sampling = request_lib.Request, sampling.Sampling
# Below V, which the decoder then masks.
TOKENS, CANDIDATES, MOST = 200, 7, 6
PLAIN = request_lib.Guide(3, CANDIDATES)
STEERED = request_lib.Guide(3, CANDIDATES, {'kind': 6.0, 'loud': -3.0}, 1.0)


def text(length: int, seed: int) -> list[int]:
  return [token % TOKENS for token in toys.text(length, seed)]


# Some tokens alone, or all but some.
CHOICES = tuple((token, 100.0) for token in (3, 60, 70, 150))
REQUESTS = [
  Request(text(11, 1), MOST, guided=PLAIN, shared=5),
  Request(text(21, 2), MOST, guided=STEERED),
  Request(
    text(13, 3),
    MOST,
    Sampling(seed=3, logit_bias=CHOICES),
    scores_prompt=True,
    alternatives=3,
  ),
  Request(
    text(9, 4),
    MOST,
    Sampling(
      seed=4, top_p=0.8, repetition_penalty=1.5, logit_bias=((60, -100.0),)
    ),
    alternatives=2,
  ),
  Request(text(2, 5), MOST, Sampling(0, frequency_penalty=1.0)),
]


def run(tensor: int, **changes):
  """Returns the sequences of an engine of the requests, and of their turns."""
  config = toys.small(num_heads=8, d_ff=32, window=9, **changes)
  decoder = decoder_lib.Decoder(
    toys.drawn(config),
    config,
    rows=4,
    length=48,
    page=8,
    extra=PLAIN.extra(MOST),
    tokens=TOKENS,
    mesh=placement.make(tensor),
  )
  if tensor == 8 and config.num_kv_heads == 1:
    # Beams see the pages of rings gathered, and stripes of the others.
    assert decoder.network.list_gathered(CANDIDATES) == {'local'}
  engine = engine_lib.Engine(
    decoder,
    tokenizer.Bytes(),
    chunk=8,
    head=toys.head_of(),
    candidates=CANDIDATES,
    alternatives=3,
  )
  engine.rounds._shapes, engine.rounds._widths = [(1, 8)], [4]
  found = [engine.submit(one) for one in REQUESTS]
  toys.run(engine, *found)
  # Texts go on where a search settled, or a row drew.
  turns = [
    engine.submit(Request([*one.text().tokens, *text(4, 9)], 3, Sampling(0)))
    for one in found
  ]
  toys.run(engine, *turns)
  assert min(one.reused for one in turns) > 0
  return [*found, *turns]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('is_split', 'tensor', 'heads'),
  [(False, 2, 1), (True, 8, 1), (False, 8, 2), (True, 4, 4), (True, 8, 8)],
)
def test_each_request_gets_what_one_device_gives(
  monkeypatch, is_split, tensor, heads
):
  mesh_lives.split_tokens(monkeypatch, is_split)
  # One device then runs a program for each layer, and a mesh still one for all.
  monkeypatch.setattr(layered, '_DEEP', 2)
  for one, wanted in zip(
    run(tensor, num_kv_heads=heads), run(1, num_kv_heads=heads)
  ):
    tokens = [event.token for event in wanted.events]
    assert [event.token for event in one.events] == tokens and tokens
    assert (one.reason, one.reused) == (wanted.reason, wanted.reused)
    shown, wanted_shown = (
      jax.tree.leaves((x.result()[2:4], x.result()[7:], [*x.events]))
      for x in (one, wanted)
    )
    for x, y in zip(shown, wanted_shown, strict=True):
      if not isinstance(x, str):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)
