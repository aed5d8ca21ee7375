"""Computes confidence intervals of a fraction, and of a difference of two.

Wilson's score interval (1927) holds a proportion that was estimated by `right`
of `total` independent questions. Unlike the normal approximation it also holds
near 0 and 1:

    (p + z²/2n ± z·√(p(1 − p)/n + z²/4n²)) / (1 + z²/n),    p = right / n

Newcombe's interval (1998, method 10) holds the difference p₁ − p₂ and is made
of the two Wilson intervals (l₁, u₁) and (l₂, u₂):

    p₁ − p₂ − √((p₁ − l₁)² + (u₂ − p₂)²)
    p₁ − p₂ + √((u₁ − p₁)² + (p₂ − l₂)²)

It assumes that the two are independent. If both answer the same questions, and
find the same ones hard, the difference is more certain than the interval says.
"""

import math
from typing import NamedTuple

_Z = 1.959963984540054  # Two-sided 95 % quantile of the normal distribution.


class Interval(NamedTuple):
  """A 95 % confidence interval, as fractions."""

  low: float
  high: float


def wilson(right: int, total: int) -> Interval:
  """Returns the interval of a proportion, within 0 and 1.

  Raises:
    ValueError: more right answers than questions, or no question.
  """
  if not 0 <= right <= total or not total:
    raise ValueError(
      f'right={right}, total={total}: total must be at least 1, and right must'
      ' lie in 0…total.'
    )
  p = right / total
  square = _Z * _Z / total
  middle = p + square / 2
  half = math.sqrt(p * (1 - p) * square + square * square / 4)
  # The ends are 0 and 1 exactly where no answer is right, or all are.
  low = 0.0 if right == 0 else (middle - half) / (1 + square)
  high = 1.0 if right == total else (middle + half) / (1 + square)
  return Interval(low, high)


def difference(
  first: tuple[int, int], second: tuple[int, int]
) -> tuple[float, Interval]:
  """Returns p₁ − p₂ and its interval.

  Args:
    first: (right, total) of p₁.
    second: (right, total) of p₂.

  Raises:
    ValueError: see `wilson`.
  """
  (low_1, high_1), (low_2, high_2) = wilson(*first), wilson(*second)
  p_1, p_2 = first[0] / first[1], second[0] / second[1]
  d = p_1 - p_2
  return d, Interval(
    d - math.hypot(p_1 - low_1, high_2 - p_2),
    d + math.hypot(high_1 - p_1, p_2 - low_2),
  )
