"""Drafts change no bit of a text: nothing but how many calls it takes."""

from unittest import mock

import numpy as np
import pytest

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import speculation
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.model import token_head
from tests.decoding import toys

LENGTH, CHUNK = 40, 8
SAMPLINGS = (
  sampling.Sampling(temperature=0, repetition_penalty=1.4),
  sampling.Sampling(0.9, 20, 0.9, 0.01, 1.3, seed=5),
)


def made(config, **options):
  decoder = decoder_lib.Decoder(
    toys.drawn(config),
    config,
    rows=2,
    length=LENGTH,
    page=4,
    **{'extra': CHUNK - 1, **options},
  )
  rng = np.random.default_rng(4)
  head = (
    {
      'w_DC': rng.normal(0, 1, (config.d_model, 2)).astype(np.float32),
      'bias_C': np.zeros(2, np.float32),
    },
    token_head.TokenHeadConfig(('one', 'two')),
  )
  return engine_lib.Engine(decoder, chunk=CHUNK, head=head, speculates=True)


def run(engine, prompts_L):
  """Returns what two sequences draw beside each other, events and results."""
  several = [
    engine.submit(request_lib.Request(prompt_L, 30, settings))
    for prompt_L, settings in zip(prompts_L, SAMPLINGS)
  ]
  while not engine.is_idle:
    engine.advance()
  return [(list(one.events), one.result()) for one in several]


def test_a_text_with_drafts_has_the_bits_of_one_without(monkeypatch):
  config = toys.config(layout='L0', quantization=toys.int8())
  engine = made(config, mode='reference')
  drafts, costs = engine._speculation, {'step': 1.0, 'draft': 0.01}
  nothing = speculation.Found(np.zeros(0, np.int32), 0)
  prompts_L = toys.tokens(config, 2, 9)
  with monkeypatch.context() as patched:
    patched.setattr(drafts, 'look_up', lambda one: nothing)
    want = run(engine, prompts_L)
  texts = [[*prompt, *x.tokens] for prompt, (_, x) in zip(prompts_L, want)]
  rng, lengths = np.random.default_rng(2), []

  def look_up(one):
    text = texts[one.prompt_number]
    rest_L = np.array(text[len(one.whole_text()) :][:7], np.int32)
    right = int(rng.integers(len(rest_L) + 1))
    rest_L[right:] = (rest_L[right:] + 1) % config.vocab_size
    lengths.append((right, len(rest_L)))
    return speculation.Found(rest_L, speculation._LEAST)

  def numbered(one):
    one.prompt_number = int(one.request.sampling is SAMPLINGS[1])
    return look_up(one)

  monkeypatch.setattr(drafts, 'look_up', numbered)
  monkeypatch.setattr(drafts._costs, 'seconds', lambda kind, _: costs[kind])
  for _ in range(2):  # The second time it resumes what the first recorded.
    found = run(engine, prompts_L)
    for (events, result), (wanted, whole) in zip(found, want):
      assert events == wanted
      np.testing.assert_array_equal(
        result.log_probabilities, whole.log_probabilities
      )
      assert result.reason == whole.reason == 'length'
  assert {(0, 7), (7, 7)} <= set(lengths)


def test_what_followed_before_is_a_draft():
  def found(text):
    return speculation.find(np.array(text, np.int32)).tokens_L[:4].tolist()

  assert found([1, 2, 3, 4, 5, 6, 7, 1, 2, 3]) == [4, 5, 6, 7]
  # The place with more tokens in common, or the later one.
  assert found([9, 1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 3])[0] == 4
  assert found([9, 1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3])[0] == 5
  # A loop goes on.
  assert found([7, 1, 2, 1, 2, 1, 2]) == [1, 2, 1, 2]
  assert found([5, 5, 5, 5]) == [5, 5, 5, 5]
  for nothing in [], [1], [1, 2, 3], [1, 2, 3, 4, 2, 3], [1, 1, 1]:
    assert found(nothing) == []


def test_a_long_match_is_worth_a_dear_draft():
  """A draft that costs five steps runs where the match is long, and only there.

  A first draft was never tried here while matches did not count.
  """
  engine = made(toys.config(layout='L0'))
  drafts, costs = engine._speculation, {'step': 1.0, 'draft': 4.5}
  drafts._costs.seconds = lambda kind, size: costs[kind] if size else 0.0

  def choose(*text):
    whole_L = np.array(text, np.int32)
    one = mock.Mock(draws_left=20, flying=0, whole_text=lambda: whole_L)
    return (*drafts.choose([one]), speculation.find(whole_L).common)

  going, draft, common = choose(9, 1, 2, 3, 4, 5, 6, 7, 8, 2, 3, 4)
  assert going and draft is None and common == 3
  going, draft, common = choose(9, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7)
  assert not going and common == 7
  assert draft.tokens_L.tolist() == [8, 1, 2, 3, 4, 5, 6]


def test_drafts_that_do_not_pay_pause():
  """Ever longer, while none of their tokens is right."""
  record, tried = speculation._Record(), []
  for length in range(1000):
    if length < record.until:
      continue
    if record.expect(15, 3) < 0.5:
      record.rest(length)
      continue
    tried.append(length)
    record.note(0, 15)
  assert len(tried) < 50
  assert np.diff(tried).max() > 200
  record.note(15, 15)
  assert record.pause == 8 and record.expect(15, 3) > 5


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'isolates': True}, 'isolates=True, speculates=True'),
    ({}, 'extra=0 slots of the decoder leave no room for a draft'),
  ],
)
def test_an_engine_that_cannot_drop_drafts_is_refused(options, message):
  config = toys.config(layout='L0 G1')
  decoder = decoder_lib.Decoder(
    toys.drawn(config), config, rows=2, length=LENGTH, page=4
  )
  with pytest.raises(ValueError, match=message):
    engine_lib.Engine(decoder, chunk=CHUNK, speculates=True, **options)
