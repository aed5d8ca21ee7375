"""llama.cpp gives our model's own tokens, in real time and within its bounds.

Needs xllamacpp, which stands in no extra.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.experiments.benchmarks.load_test import load
from kaiju_jax.interchange import hugging_face
from kaiju_jax.model import transformer
from tests.interchange import toys

pytest.importorskip('xllamacpp')
pytest.importorskip('gguf')

from kaiju_jax.experiments.benchmarks.load_test import llama_serving

CONFIG = toys.changed(toys.PLAIN, num_kv_heads=2)


@pytest.fixture(scope='module')
def params():
  # Gains and weights wide enough that answers are not one token over and over.
  return jax.tree.map(lambda x: 2 * x, toys.params_of(CONFIG, seed=1))


@pytest.fixture(scope='module')
def path(params, tmp_path_factory):
  folder = tmp_path_factory.mktemp('model')
  hugging_face.write(folder / 'folder', params, CONFIG)
  llama_serving.write(folder / 'model.gguf', folder / 'folder')
  return folder / 'model.gguf'


def arrivals(count, **changes):
  drawn = {'prompt': (20, 40), 'answer': (6, 9), **changes}
  return load.arrivals(
    load.Load(rate=np.inf, count=count, vocabulary=CONFIG.vocab_size, **drawn)
  )


def forward(params):
  """Returns what gives the likeliest token behind others, without a cache."""
  model = transformer.Transformer(CONFIG)
  row = visibility.causal(CONFIG.max_length)

  @jax.jit
  def logits(tokens_BL):
    return model.apply({'params': params}, tokens_BL, row)

  def likeliest(tokens):
    # Causal: what stands behind the last token is not seen.
    padded = np.pad(tokens, (0, CONFIG.max_length - len(tokens)))
    return int(jnp.argmax(logits(padded[None])[0, len(tokens) - 1]))

  return likeliest


def test_answers_are_those_of_our_forward_pass(params, path):
  """More requests than may be in flight."""
  likeliest = forward(params)
  served = llama_serving.serve(path, arrivals(7), in_flight=3)
  for arrival, tokens, seconds in served:
    so_far = arrival.tokens
    for token in tokens:
      assert token == likeliest(so_far)
      so_far = np.append(so_far, token)
    assert seconds.shape == tokens.shape == (arrival.max_tokens,)
    assert seconds[0] > 0 and (np.diff(seconds) > 0).all()
  assert len({tuple(x.tokens[:6]) for x in served}) == 7


def test_no_more_are_in_flight_than_allowed_nor_before_they_come(path):
  sent = arrivals(5, answer=(6, 6))
  sent[-1] = sent[-1]._replace(seconds=1.0)
  served = llama_serving.serve(path, sent, in_flight=2)
  running = [
    sum(x.seconds[0] <= now <= x.seconds[-1] for x in served)
    for now in np.concatenate([x.seconds for x in served])
  ]
  assert max(running) == 2
  assert served[-1].seconds[0] > 1.0 > served[0].seconds[-1]


def test_a_file_that_is_none_is_refused(tmp_path):
  with pytest.raises(RuntimeError, match='init server'):
    llama_serving.serve(tmp_path / 'no.gguf', arrivals(1))


def test_an_answer_that_ends_early_is_an_error(path):
  """As it does at the end of the model's context, 64 tokens."""
  sent = arrivals(1, prompt=(60, 60), answer=(10, 10))
  with pytest.raises(RuntimeError, match='of 10 tokens'):
    llama_serving.serve(path, sent)
