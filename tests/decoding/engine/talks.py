"""Talks of a few turns that an engine runs, and their texts."""

import numpy as np

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from tests.decoding import fake_device

SALT = 'b' * 64


SHARED = 14  # Three pages and a half.


def text(seed, count):
  return np.random.default_rng(seed).integers(0, fake_device.VOCABULARY, count)


def run(engine, tokens, seed=0, **options):
  one = engine.submit(
    request_lib.Request(
      np.asarray(tokens), 6, sampling.Sampling(seed=seed), **options
    )
  )
  while one.reason is None:
    engine.advance()
  result = one.result()
  if one.reason != 'error':
    assert (result.tokens.tolist(), one.reason) == fake_device.expected(
      one.request
    )
  return one


def talk(engine, owner='ann', conversation='c', turns=2, salt=SALT, prefix=0):
  """Returns the text after some turns of a conversation behind a prefix."""
  tokens = text(prefix, SHARED).tolist()
  for turn in range(turns):
    tokens += text([*f'{owner}{conversation}{turn}'.encode()], 9).tolist()
    options = dict(shared=SHARED, cache_salt=salt, conversation=conversation)
    one = run(engine, tokens, owner=owner, **options)
    tokens = one.text().tokens.tolist()
  return tokens
