"""Answers are the argmax of the full model's logits, at the last positions."""

import jax
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.evaluation import answers
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from tests.model import params as params_lib


@pytest.fixture(scope='module')
def model():
  config = model_config.ModelConfig(
    d_model=32, num_layers=2, num_heads=2, head_dim=16, d_ff=32, period=2,
    window=4, max_length=16, global_share=1, local_share=1, dtype='float32',
    quantization=quantization_config.none(),
  )  # fmt: skip
  model = transformer.Transformer(config)
  return model, params_lib.drawn(model)


def test_answers_are_the_likeliest_successors_of_the_last_tokens(model):
  model, params = model
  predict = answers.predictor(model)
  # Two rows of 12 in a call: two texts of 12, four of 5 (with two tokens to
  # spare in each row), six of 4.
  read = answers.reader(predict, params, {12, 5, 4}, tokens=24)
  apply = jax.jit(model.apply)
  rng = np.random.default_rng(0)
  for length, total in (12, 3), (5, 4), (4, 8):
    tokens_BL = rng.integers(0, 256, (total, length))
    # Text by text, each its own causal row; all logits. What stands behind a
    # text changes nothing before it, so that rows of 12 will do.
    expected = [
      np.argmax(
        apply(
          {'params': params},
          np.pad(text, (0, 12 - length))[None],
          visibility_lib.causal(12),
        )[0, :length],
        axis=-1,
      )
      for text in tokens_BL
    ]
    for count in (1, 3):
      found = read(tokens_BL, count)
      assert found.shape == (total, count)
      np.testing.assert_array_equal(found, np.array(expected)[:, -count:])
  # Once for each count, whatever the lengths.
  assert predict._cache_size() == 2


def test_a_length_that_was_not_named_is_refused(model):
  read = answers.reader(None, model[1], {12, 5})
  with pytest.raises(ValueError, match=r'\(3, 6\): .* lengths=\[5, 12\]'):
    read(np.zeros((3, 6), int), 1)
