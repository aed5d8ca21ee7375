"""Holds the constants that all online softmaxes here share.

    peak'  = max(peak, max s)
    total' = total · 2^(peak - peak') + Σ 2^(s - peak')

The first peak is LOWEST. Most kernels compute in base 2, the base of the
hardware's exponential: s = LOG2E · logit, lse = (peak + log2 total) / LOG2E.
"""

import math

# Below any logit, and finite. A row that sees nothing thus computes 2^(-inf -
# LOWEST), which is 0, and never -inf + inf, which is NaN.
LOWEST = -1e30
LOG2E = math.log2(math.e)
