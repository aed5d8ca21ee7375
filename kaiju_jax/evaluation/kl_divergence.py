"""The divergence between two models' next tokens, on the device.

For models that a run holds in memory and texts of a few rows. The quantization
gate compares whole conversations, part by part, in
`kaiju_jax/evaluation/gate/divergence.py`.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.model import transformer
from kaiju_jax.runs import load


def compare(
  ours: load.Loaded, theirs: load.Loaded
) -> Callable[[Any, visibility_lib.Visibility], jax.Array]:
  """Returns a function that computes KL(ours ‖ theirs) after each token.

  It takes tokens [B, L] and who sees whom, and returns nats [B, L].

  Args:
    ours, theirs: models with the same vocabulary.
  """
  first, second = (_log_probabilities(one) for one in (ours, theirs))

  @jax.jit
  def compute(variables, tokens_BL, visibility):
    log_p, log_q = (
      one(given, tokens_BL, visibility)
      for one, given in zip((first, second), variables, strict=True)
    )
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)

  both = load.variables(ours), load.variables(theirs)
  return lambda tokens_BL, visibility: compute(both, tokens_BL, visibility)


def _log_probabilities(loaded: load.Loaded):
  # Nothing is differentiated here.
  config = dataclasses.replace(loaded.config, remat='none')
  model = transformer.Transformer(config)

  def compute(variables, tokens_BL, visibility):
    return jax.nn.log_softmax(model.apply(variables, tokens_BL, visibility))

  return compute
