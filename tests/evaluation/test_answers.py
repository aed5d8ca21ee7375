"""Answers are the argmax of the full model's logits, at the last positions."""

import jax
import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.evaluation import answers
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import state


def test_answers_are_the_likeliest_successors_of_the_last_tokens():
  config = model_config.ModelConfig(
    d_model=32, num_layers=2, num_heads=2, head_dim=16, d_ff=32, period=2,
    window=4, max_length=16, global_share=1, local_share=1, dtype='float32',
    quantization=quantization_config.none(),
  )  # fmt: skip
  model = transformer.Transformer(config)
  params = state.init_params(model, 0)
  tokens_BL = np.random.default_rng(0).integers(0, 256, (3, 12))
  read = answers.reader(model, params)
  # Row by row, each its own causal document; all logits.
  apply = jax.jit(model.apply)
  expected = [
    np.argmax(
      apply({'params': params}, row[None], visibility_lib.causal(12))[0],
      axis=-1,
    )
    for row in tokens_BL
  ]
  for count in (1, 4):
    found = read(tokens_BL, count)
    assert found.shape == (3, count)
    np.testing.assert_array_equal(found, np.array(expected)[:, -count:])
