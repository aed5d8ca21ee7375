"""Bounds on the sums of products of int8 codes in an int32; imports no jax.

A projection sums products of an activation's code and a weight's code in int32,
which wraps silently. At full scale a signed code is 127. A non-negative
activation has a level q = 0…255 and the code c = q − 128; the sum of the
weight's codes corrects the product afterwards:

    Σ q·w = Σ c·w + 128·Σ w,    |Σ q·w| ≤ 255 · 127 · terms

Neither term of the right side exceeds the bound of the sum.
"""

MAX_CODE = 127
MAX_LEVEL = 255


def most_terms(nonnegative: bool = False) -> int:
  """Returns the longest contraction whose sum fits an int32 at full scale.

  Args:
    nonnegative: whether the activations are coded on all 256 levels.
  """
  largest = MAX_LEVEL if nonnegative else MAX_CODE
  return (2**31 - 1) // (largest * MAX_CODE)


def check(what: str, terms: int, nonnegative: bool = False) -> None:
  """Refuses a contraction whose int32 sum could wrap.

  Args:
    what: the field or the weight, and its value; begins the message.
    terms: products in one sum.
    nonnegative: see `most_terms`.

  Raises:
    ValueError: the contraction is too long; the message gives the limit.
  """
  most = most_terms(nonnegative)
  if terms > most:
    largest = MAX_LEVEL if nonnegative else MAX_CODE
    raise ValueError(
      f'{what}: must be at most {most}, because an int32 holds no longer sum of'
      f' products of codes up to {largest} × {MAX_CODE}.'
    )
