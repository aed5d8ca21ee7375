"""Reads a trained model's answers off the last positions of texts.

Texts of all lengths share one compiled call: they are packed into rows as long
as the longest. Only the answers' positions pass through the head, because all
logits of a batch would be larger than the model.
"""

from collections.abc import Callable
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.model import transformer

Predict = Callable[..., jax.Array]


def predictor(model: transformer.Transformer) -> Predict:
  """Returns the jitted call for `reader`; runs of one model share it.

  It takes (params, tokens_BL, visibility, place_BP) and returns int32[B, P],
  the likeliest successor of the token at each place.
  """

  @jax.jit
  def predict(params, tokens_BL, visibility, place_BP):
    hidden_BLD = model.apply(
      {'params': params}, tokens_BL, visibility, method='hidden'
    )
    hidden_BPD = jnp.take_along_axis(hidden_BLD, place_BP[:, :, None], axis=1)
    logits_BPV = model.apply({'params': params}, hidden_BPD, method='logits')
    return jnp.argmax(logits_BPV, axis=-1)

  return predict


def reader(
  predict: Predict, params: Any, lengths: Collection[int], tokens: int = 4096
) -> Callable[[np.ndarray, int], np.ndarray]:
  """Returns (tokens_BL, A) → int32[B, A], the last A tokens' successors.

  With A > 1 the answer's own tokens stand in the text (teacher forcing): all A
  are right exactly where greedy decoding would write the whole answer. B may be
  any number; the call compiles once for each A.

  Args:
    predict: the call that `predictor` returned.
    params: the model's parameters.
    lengths: every L of later calls.
    tokens: number of tokens per call, roughly.
  """
  length = max(lengths)
  rows = max(1, tokens // length)
  most_texts = length // min(lengths)

  def answer(tokens_BL: np.ndarray, count: int) -> np.ndarray:
    total, size = tokens_BL.shape
    if size not in lengths:
      raise ValueError(
        f'tokens_BL has shape {tokens_BL.shape}: its length must be one of'
        f' lengths={sorted(lengths)}.'
      )
    texts = length // size
    visibility = visibility_lib.concatenate(
      [visibility_lib.documents([size] * texts, length)] * rows
    )
    ends = size * np.arange(1, texts + 1)[:, None]
    place = (ends - count + np.arange(count)).ravel()
    place = np.pad(place, (0, most_texts * count - place.size), mode='edge')
    place_BP = np.broadcast_to(place.astype(np.int32), (rows, place.size))
    # All calls are dispatched before the first result is fetched.
    found = [
      predict(params, packed_BL, visibility, place_BP)
      for packed_BL in _pack(tokens_BL, rows, texts, length)
    ]
    answers = [
      np.asarray(part_BP)[:, : texts * count].reshape(-1, count)
      for part_BP in found
    ]
    return np.concatenate(answers)[:total]

  return answer


def _pack(tokens_BL: np.ndarray, rows: int, texts: int, length: int):
  """Yields int32[rows, length], `texts` in each row; the last one repeats."""
  total, size = tokens_BL.shape
  missing = -total % (rows * texts)
  padded_BL = np.pad(tokens_BL, ((0, missing), (0, 0)), mode='edge')
  rows_BL = padded_BL.astype(np.int32).reshape(-1, texts * size)
  rows_BL = np.pad(rows_BL, ((0, 0), (0, length - texts * size)))
  yield from rows_BL.reshape(-1, rows, length)
