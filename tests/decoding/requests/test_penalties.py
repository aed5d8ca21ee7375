"""Penalties against plain readings of their definitions."""

import collections

import hypothesis
from hypothesis import strategies
import jax
import numpy as np
import pytest

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.requests import penalties
from kaiju_jax.decoding.requests import sampling as sampling_lib

Sampling = sampling_lib.Sampling
WINDOW, VOCABULARY, ROWS = penalties.WINDOW, 8, 3
apply, append = jax.jit(penalties.apply), jax.jit(penalties.append)
LOGITS_BV = np.random.default_rng(0).normal(0, 3, (ROWS, VOCABULARY))
LOGITS_BV = LOGITS_BV.astype(np.float32)


def repeats(text, window, breakers):
  """{token: length of the longest repeated end that it followed}; by loops."""
  last, found = text[len(text) - min(window, len(text)) :], {}
  for length in range(1, len(last)):
    end = last[len(last) - length :]
    if breakers & set(end):
      break
    for start in range(len(last) - length):
      if last[start : start + length] == end:
        found[last[start + length]] = length
  return {token: n for token, n in found.items() if token not in breakers}


def expected(logits_V, sampling, text, prompt, breakers):
  x_V = np.array(logits_V, np.float64)
  for token, bias in sampling.logit_bias:
    x_V[token] += bias
  last = sampling.repeat_last_n
  first = 0 if last < 0 else len(text) - min(last, len(text))
  for token in set(text[first:]):
    factor = sampling.repetition_penalty ** (-1 if x_V[token] > 0 else 1)
    x_V[token] *= factor
  for token, count in collections.Counter(text[prompt:]).items():
    x_V[token] -= sampling.frequency_penalty * count
    x_V[token] -= sampling.presence_penalty
  found = repeats(text, sampling.dry_penalty_last_n, breakers)
  for token, length in found.items():
    more = length - sampling.dry_allowed_length
    if more >= 0:
      power = min(sampling.dry_base**more, 1e9)  # Long repetitions reach it.
      x_V[token] -= sampling.dry_multiplier * power
  return x_V


def penalized(samplings, texts, prompts, breakers, drawn=0):
  """Logits of rows whose last `drawn` tokens came one after another."""
  rows = [
    penalties.read(
      np.array(text[: len(text) - drawn], np.int32),
      prompt,
      np.array(sorted(breakers), np.int32),
      VOCABULARY,
    )
    for text, prompt in zip(texts, prompts)
  ]
  state = jax.tree.map(lambda *x: np.stack(x), *rows)
  # Rows of a call come in any order.
  row_B = np.array([2, 0, 1])
  for at in range(drawn, 0, -1):
    token_B = np.array([texts[row][-at] for row in row_B], np.int32)
    state = append(state, row_B, token_B, np.ones(ROWS, bool))
  settings = sampling_lib.settings([samplings[row] for row in row_B])
  found_BV = apply(LOGITS_BV[row_B], settings, state, row_B)
  return np.asarray(found_BV)[np.argsort(row_B)]


floats, integers = strategies.floats, strategies.integers
SAMPLINGS = strategies.builds(
  Sampling,
  repetition_penalty=strategies.just(1.0) | floats(0.5, 2),
  repeat_last_n=integers(-1, 12),
  frequency_penalty=floats(-2, 2),
  presence_penalty=floats(-2, 2),
  logit_bias=strategies.dictionaries(integers(0, 7), floats(-100, 100)),
  dry_multiplier=strategies.just(0.0) | floats(0.1, 4),
  dry_base=floats(1, 2),
  dry_allowed_length=integers(1, 6),
  dry_penalty_last_n=integers(0, 40) | strategies.just(WINDOW),
)
TOKENS = strategies.lists(integers(0, 7), max_size=7)


@strategies.composite
def rows(draw):
  """Samplings, texts that repeat, the lengths of their prompts."""
  texts = []
  for _ in range(ROWS):
    pieces = draw(strategies.lists(TOKENS, min_size=1, max_size=3))
    order = draw(strategies.lists(strategies.sampled_from(pieces), max_size=6))
    texts.append([x for piece in (*order, draw(TOKENS)) for x in piece])
  prompts = [draw(integers(0, len(text))) for text in texts]
  return [draw(SAMPLINGS) for _ in range(ROWS)], texts, prompts


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(rows(), strategies.sets(integers(0, 7), max_size=2))
def test_penalties_are_as_defined(rows, breakers):
  samplings, texts, prompts = rows
  wanted_BV = [
    expected(logits_V, *row, breakers)
    for logits_V, *row in zip(LOGITS_BV, samplings, texts, prompts)
  ]
  # Read at once, or partly drawn: as many tokens as all replies have.
  replies = [len(text) - prompt for text, prompt in zip(texts, prompts)]
  for drawn in {0, min(replies)}:
    found_BV = penalized(samplings, texts, prompts, breakers, drawn)
    np.testing.assert_allclose(found_BV, wanted_BV, rtol=2e-5, atol=2e-5)


def changes(sampling, text, breakers=(), drawn=0):
  """{token: how much lower} of a text that is the prompt's but for `drawn`."""
  prompt = len(text) - drawn
  samplings = [sampling, Sampling(), Sampling()]
  texts, prompts = [list(text), [1] * 3, [2] * 3], [prompt, 0, 0]
  breakers = set(breakers)
  found_BV = penalized(samplings, texts, prompts, breakers, min(drawn, 3))
  # The other rows keep their bits.
  np.testing.assert_array_equal(found_BV[1:], LOGITS_BV[1:])
  lower_V = LOGITS_BV[0] - found_BV[0]
  return {
    token: round(float(lower_V[token]), 3) for token in np.flatnonzero(lower_V)
  }


def dry(length=2, last=WINDOW, multiplier=1.0):
  return Sampling(
    dry_multiplier=multiplier,
    dry_base=3.0,
    dry_allowed_length=length,
    dry_penalty_last_n=last,
  )


@pytest.mark.parametrize(
  ('sampling', 'text', 'breakers', 'wanted'),
  [
    # 1 2 stood before 3: a repeated end of two tokens.
    (dry(), [1, 2, 3, 1, 2], (), {3: 1.0}),
    (dry(1), [1, 2, 3, 1, 2], (), {3: 3.0}),
    (dry(3), [1, 2, 3, 1, 2], (), {}),
    # The window must hold both.
    (dry(last=5), [7, 1, 2, 3, 1, 2], (), {3: 1.0}),
    (dry(last=4), [7, 1, 2, 3, 1, 2], (), {}),
    (dry(1, last=4), [7, 1, 2, 3, 1, 2], (), {3: 1.0}),
    (dry(1, last=0), [1, 2, 3, 1, 2], (), {}),
    (dry(1), [], (), {}),
    # The two may overlap.
    (dry(1), [5, 5, 5, 5], (), {5: 9.0}),
    # A repeated end reaches back to a breaker, and breakers go on.
    (dry(1), [1, 2, 3, 1, 2], (1,), {3: 1.0}),
    (dry(1), [1, 2, 3, 1, 2], (3,), {}),
    (dry(1), [1, 2, 3, 6, 1, 2], (6,), {3: 3.0}),
    # Of several the longest counts, once.
    (dry(1), [2, 3, 1, 2, 3, 2, 4, 1, 2], (), {3: 3.0, 4: 1.0}),
    # The end of a long text; its beginning is beyond what a row remembers.
    (dry(1), [1, 2, 3] + [4] * (WINDOW - 5) + [1, 2], (), {3: 3.0}),
    (dry(1), [1, 2, 3] + [4] * (WINDOW - 4) + [1, 2], (), {3: 1.0}),
  ],
)
@pytest.mark.parametrize('drawn', [0, 3])
def test_dry_at_its_boundaries(sampling, text, breakers, wanted, drawn):
  drawn = min(drawn, len(text))
  assert changes(sampling, text, breakers, drawn) == wanted


def test_windows_of_the_repetition_penalty():
  def lowered(**fields):
    sampling = Sampling(repetition_penalty=2.0, **fields)
    return set(changes(sampling, [1, 2] + [4] * 1022 + [3], drawn=2))

  assert lowered() == {1, 2, 3, 4}
  assert lowered(repeat_last_n=1024) == {2, 3, 4}
  assert lowered(repeat_last_n=1) == {3}
  assert lowered(repeat_last_n=0) == set()


def test_openai_s_penalties_count_the_reply_alone():
  sampling = Sampling(frequency_penalty=0.5, presence_penalty=1.0)
  text = [1] * 9 + [2] + [3] * 1500
  assert changes(sampling, text, drawn=1501) == {2: 1.5, 3: 751.0}
  assert changes(sampling, text[:10], drawn=0) == {}


def test_what_changes_nothing_keeps_all_bits():
  logits_BV = LOGITS_BV.copy()
  logits_BV[0, :5] = np.nan, np.inf, -np.inf, -0.0, 1e-30
  text = penalties.read(np.arange(8, dtype=np.int32) % 3, 2, [], VOCABULARY)
  state = jax.tree.map(lambda x: np.stack([x] * ROWS), text)
  idle = sampling_lib.settings([Sampling()] * ROWS)
  assert not idle.penalizes_B.any()
  # Also in a row that has penalties which happen to do nothing.
  for settings in idle, idle._replace(penalizes_B=np.array([1, 0, 1], bool)):
    found_BV = np.asarray(apply(logits_BV, settings, state, np.arange(ROWS)))
    assert found_BV.tobytes() == logits_BV.tobytes()


def test_only_penalties_are_applied():
  idle = {'temperature': 0.3, 'top_k': 4, 'top_p': 0.5, 'min_p': 0.1}
  idle |= {'repeat_last_n': 64, 'dry_base': 2.0, 'dry_allowed_length': 3}
  assert not Sampling(**idle).penalizes
  assert not Sampling(repetition_penalty=1.1, repeat_last_n=0).penalizes
  used = {'repetition_penalty': 0.9, 'frequency_penalty': -0.1}
  used |= {'presence_penalty': 0.1, 'logit_bias': {3: 0.0}}
  for name, value in (used | {'dry_multiplier': 0.1}).items():
    assert Sampling(**{name: value}).penalizes


def test_the_most_biases_and_one_beyond_the_vocabulary():
  biases = {token: 0.5 for token in range(penalties.BIASES - 2)}
  biases |= {7: -100.0, 2**31 - 2: 1.0, 2**31 - 3: 1.0}
  sampling = Sampling(logit_bias=biases)
  assert len(sampling.logit_bias) == penalties.BIASES
  assert changes(sampling, []) == {**dict.fromkeys(range(7), -0.5), 7: 100.0}
  with pytest.raises(ValueError, match='301 entries: at most 300'):
    Sampling(logit_bias=biases | {1000: 1.0})


@pytest.mark.parametrize(
  ('token', 'bias'),
  [(-1, 1), (2**31 - 1, 1), (True, 1), ('a', 1), (3, 100.1), (3, None)]
  + [(3, float('nan'))],
)
def test_bad_biases_are_refused(token, bias):
  with pytest.raises(
    ValueError, match=rf'logit_bias\[{token!r}\]={bias}: must'
  ):
    Sampling(logit_bias={token: bias})


@pytest.mark.parametrize('strings', ['\n', [''], ['a' * 41], ['a'] * 17, [1]])
def test_bad_breakers_are_refused(strings):
  with pytest.raises(ValueError, match='dry_sequence_breakers='):
    Sampling(dry_sequence_breakers=strings)
  Sampling(dry_sequence_breakers=['a' * 40] * 16)


def test_breakers_are_control_tokens_and_those_with_a_string():
  tokenizer = tokenizer_lib.Bytes()
  control = [*range(9), *range(11, 32), 127]
  found = penalties.find_breakers(tokenizer, ())
  assert found.tolist() == control
  # No token holds two characters, nor is a string a pattern.
  strings = *penalties.BREAKERS, 'ab', 'cc', '.'
  found = penalties.find_breakers(tokenizer, strings)
  assert found.tolist() == sorted([*control, *b'\n:"*.'])
  assert penalties.find_breakers(None, ('a',)).tolist() == []
