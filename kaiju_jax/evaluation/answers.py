"""Reads a trained model's answers off the last positions of rows.

Only those positions pass through the head: at a length of 256 and a
vocabulary of 65,536 all logits of a batch would be larger than the model.
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.model import transformer


def reader(
  model: transformer.Transformer, params: Any
) -> Callable[[np.ndarray, int], np.ndarray]:
  """Returns (tokens_BL, A) → int32[B, A], the likeliest successors.

  Of the last A tokens of each row, one document a row. With A > 1 the answer's
  own tokens stand in the row (teacher forcing): all A predictions are right
  exactly where greedy decoding would write the whole answer.
  """

  @functools.partial(jax.jit, static_argnums=2)
  def predict(params, tokens_BL, count):
    rows, length = tokens_BL.shape
    visibility = visibility_lib.concatenate(
      [visibility_lib.causal(length)] * rows
    )
    hidden_BLD = model.apply(
      {'params': params}, tokens_BL, visibility, method='hidden'
    )
    logits_BLV = model.apply(
      {'params': params}, hidden_BLD[:, -count:], method='logits'
    )
    return jnp.argmax(logits_BLV, axis=-1)

  def answer(tokens_BL: np.ndarray, count: int) -> np.ndarray:
    return np.asarray(predict(params, tokens_BL, count))

  return answer
