"""What all online softmaxes here share.

    peak'  = max(peak, max s)
    total' = total · 2^(peak - peak') + Σ 2^(s - peak')

It begins with LOWEST for a peak. Most count in base 2, in which hardware has
its exponential: s = LOG2E · logit, and lse = (peak + log2 total) / LOG2E.
"""

import math

# Below any logit, and finite, so that 2^(-inf - LOWEST) is 0 and not NaN: a row
# that sees nothing has no inf - inf.
LOWEST = -1e30
LOG2E = math.log2(math.e)
