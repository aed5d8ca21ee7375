"""Computes bits per byte, the bits that a model needs per byte of unseen text.

    bits per byte = nats per token / ln 2 / (bytes per token)

Bytes are those of the documents' UTF-8, so that models with different
tokenizers compare.
"""

import math


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
  """Returns the loss in bits per byte.

  Args:
    nats_per_token: mean cross-entropy of the tokens that carry loss.
    bytes_per_token: mean bytes of the same tokens. BOS and the first token of
      a piece carry no loss and count for no bytes.
  """
  return nats_per_token / math.log(2) / bytes_per_token
