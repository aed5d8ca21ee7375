"""Computes bits per byte, the bits that a model needs per byte of unseen text.

    bits per byte = nats per token / ln 2 / (bytes per token)

Bytes are those of the documents' UTF-8, so that models with different
tokenizers compare. The yardstick is a model that knows only how often each byte
occurs.
"""

import math

import numpy as np


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
  """Returns the loss in bits per byte.

  Args:
    nats_per_token: mean cross-entropy of the tokens that carry loss.
    bytes_per_token: mean bytes of the same tokens. BOS and the first token of
      a piece carry no loss and count for no bytes.
  """
  return nats_per_token / math.log(2) / bytes_per_token


def unigram_bits_per_byte(training_counts, held_out_counts) -> float:
  """Returns the bits per byte of a byte-unigram model on held-out text.

  Its probabilities are the training text's frequencies, with one added to each
  count, so that a byte that training lacks has a finite cost.

  Args:
    training_counts: int[256], how often each byte occurs in the training text.
    held_out_counts: int[256], the same for the held-out text.
  """
  smoothed = np.asarray(training_counts, np.float64) + 1
  bits = -np.log2(smoothed / smoothed.sum())
  held_out = np.asarray(held_out_counts, np.float64)
  return float(held_out @ bits / held_out.sum())
