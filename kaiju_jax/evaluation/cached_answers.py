"""Decodes a trained model's answers through a cache, greedily.

Except for rounding in the cache, the whole answers that are right are those of
the forward pass of `answers.py`.
"""

from collections.abc import Callable
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.decoding.device import decoder as decoder_lib


def reader(
  decoder: decoder_lib.Decoder, chunk: int
) -> Callable[[np.ndarray, int], np.ndarray]:
  """Returns (tokens_BL, A) → int32[B, A], the A tokens that are decoded.

  The prompt is each row without its last A − 1 tokens. B may be any number:
  rows are read in parts as large as the decoder's, and two shapes compile.

  Args:
    decoder: a decoder with no row open.
    chunk: tokens per call of the prefill.
  """

  def answer(tokens_BL: np.ndarray, count: int) -> np.ndarray:
    parts = []
    for first in range(0, len(tokens_BL), decoder.rows):
      part_BL = tokens_BL[first : first + decoder.rows]
      missing = decoder.rows - len(part_BL)
      padded_BL = np.pad(part_BL, ((0, missing), (0, 0)), mode='edge')
      parts.append(_answer(decoder, padded_BL, count, chunk)[: len(part_BL)])
    return np.concatenate(parts)

  return answer


def _answer(decoder, tokens_BL, count: int, chunk: int) -> np.ndarray:
  rows = [decoder.open() for _ in tokens_BL]
  try:
    for _ in prefill(decoder, rows, tokens_BL[:, :-count], chunk):
      pass
    token_B, written = tokens_BL[:, -count], []
    for _ in range(count):
      hidden_BLD = decoder.extend_text(rows, token_B[:, None])
      logits_BLV = decoder.logits(hidden_BLD)
      token_B = np.asarray(jnp.argmax(logits_BLV[:, 0], axis=-1), np.int32)
      written.append(token_B)
  finally:
    for row in rows:
      decoder.close(row)
  return np.stack(written, axis=1)


def prefill(
  decoder: decoder_lib.Decoder,
  rows: list[int],
  tokens_BL: np.ndarray,
  chunk: int,
) -> Iterator[jax.Array]:
  """Appends equally long texts in chunks; yields each chunk's hidden states.

  All calls have `chunk` tokens; the last one's padding is not yielded.
  """
  for first in range(0, tokens_BL.shape[1], chunk):
    part_BL = tokens_BL[:, first : first + chunk]
    count = part_BL.shape[1]
    padded_BL = np.pad(part_BL, ((0, 0), (0, chunk - count)))
    hidden_BLD = decoder.extend_text(rows, padded_BL, [count] * len(rows))
    yield hidden_BLD[:, :count]
