"""The peer gives `generate`'s tokens, in real time and within its bounds.

Needs the extra `interchange`; `make interchange` runs it.
"""

import os

import numpy as np
import pytest

from kaiju_jax.experiments.benchmarks.load_test import load

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers', minversion='5')

from kaiju_jax.experiments.benchmarks.load_test import transformers_serving  # noqa: E402


def greedy(model, tokens, max_tokens):
  """Returns the plain `generate`'s answer to a prompt."""
  prompt_BL = torch.tensor(tokens[None], dtype=torch.long)
  answer_BL = model.generate(
    prompt_BL,
    attention_mask=torch.ones_like(prompt_BL),
    do_sample=False,
    max_new_tokens=max_tokens,
    eos_token_id=None,
    pad_token_id=0,
  )
  return answer_BL[0, len(tokens) :].numpy()


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  torch.manual_seed(0)
  config = transformers.ArceeConfig(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=128,
    # Wide enough that an answer is not one token over and over.
    initializer_range=0.3,
    tie_word_embeddings=False,
    eos_token_id=None,
  )
  path = tmp_path_factory.mktemp('model')
  transformers.ArceeForCausalLM(config).save_pretrained(path)
  return path


@pytest.fixture(scope='module')
def model(folder):
  return transformers_serving.model(folder)


def arrivals(count, rate=np.inf, **changes):
  drawn = {'prompt': (5, 40), 'answer': (2, 9), **changes}
  return load.arrivals(
    load.Load(rate=rate, count=count, vocabulary=97, **drawn)
  )


@pytest.mark.parametrize(
  'changes',
  [{}, {'page': 16, 'in_flight': 2}],
  ids=['as it is', 'small pages, two at a time'],
)
def test_answers_are_those_of_generate(model, changes):
  """Prompts in chunks, shared beginnings, and more requests than rows."""
  sent = arrivals(7, shared=4, prompt=(20, 50), answer=(6, 25))
  served = transformers_serving.serve(
    model, sent, **{'in_flight': 3, 'chunk': 16, 'page': 8, **changes}
  )
  assert [x.arrival for x in served] == sent
  for arrival, tokens, seconds in served:
    want = greedy(model, arrival.tokens, arrival.max_tokens)
    np.testing.assert_array_equal(tokens, want)
    assert seconds.shape == tokens.shape == (arrival.max_tokens,)
  # A pass that saw other rows' tokens would show.
  assert len({tuple(x.tokens[:6]) for x in served}) == 7


def test_requests_are_served_when_they_come(model):
  """Two at once and one later; no token comes before its request."""
  early, other, late = arrivals(3, prompt=(9, 9), answer=(9, 9))
  late = late._replace(seconds=1.0)
  served = transformers_serving.serve(model, [early, other, late])
  for timeline in served:
    assert timeline.seconds[0] > timeline.arrival.seconds
    assert (np.diff(timeline.seconds) >= 0).all()
  assert served[1].seconds[0] < served[0].seconds[-1] < 1.0


@pytest.mark.parametrize('most', [1, 3])
def test_no_more_are_in_flight_than_allowed(model, most):
  served = transformers_serving.serve(
    model, arrivals(6, answer=(6, 6)), in_flight=most
  )
  running = [
    sum(x.seconds[0] <= now <= x.seconds[-1] for x in served)
    for now in np.concatenate([x.seconds for x in served])
  ]
  assert max(running) == most


def test_bfloat16_is_another_arithmetic(folder, model):
  rounded = transformers_serving.model(folder, dtype='bfloat16')
  sent = arrivals(2, answer=(4, 4))
  served = transformers_serving.serve(rounded, sent)
  for arrival, tokens, _ in served:
    assert tokens[0] == greedy(rounded, arrival.tokens, 1)


def test_a_pass_that_fails_is_said_and_the_settings_come_back(
  model, monkeypatch
):
  def fail(*args, **kwargs):
    raise ArithmeticError('a bit fell over')

  monkeypatch.setenv('TRANSFORMERS_SDPA_FORCE_GQA', 'mine')
  monkeypatch.setattr(model, 'forward', fail)
  with pytest.raises(RuntimeError, match='a bit fell over'):
    transformers_serving.serve(model, arrivals(3))
  assert os.environ['TRANSFORMERS_SDPA_FORCE_GQA'] == 'mine'


def test_impossible_loads_are_refused(model):
  with pytest.raises(ValueError, match='at least one'):
    transformers_serving.serve(model, [])
  empty = load.Arrival(0.0, np.zeros(0, np.int32), 3)
  with pytest.raises(ValueError, match='arrival 0: 0 tokens'):
    transformers_serving.serve(model, [empty])
