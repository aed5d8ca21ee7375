"""The divergence between two models' next tokens, on the device.

For models that are held in memory and texts of a few rows. The quantization
gate compares whole conversations, part by part, in `gate/divergence.py`.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer

Model = tuple[model_config.ModelConfig, Mapping[str, Any]]


def compare(
  ours: Model, theirs: Model
) -> Callable[[Any, visibility_lib.Visibility], jax.Array]:
  """Returns a function that computes KL(ours ‖ theirs) after each token.

  It takes tokens [B, L] and who sees whom, and returns nats [B, L].

  Args:
    ours, theirs: configs and variables of models with the same vocabulary.
  """

  def log_probabilities(config, variables, tokens_BL, visibility):
    # Nothing is differentiated here.
    model = transformer.Transformer(dataclasses.replace(config, remat='none'))
    return jax.nn.log_softmax(model.apply(variables, tokens_BL, visibility))

  @jax.jit
  def compute(variables, tokens_BL, visibility):
    log_p, log_q = (
      log_probabilities(config, given, tokens_BL, visibility)
      for (config, _), given in zip((ours, theirs), variables, strict=True)
    )
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)

  both = ours[1], theirs[1]
  return lambda tokens_BL, visibility: compute(both, tokens_BL, visibility)
