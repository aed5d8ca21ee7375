"""The quantization gate: a candidate's tokens and codes beside a baseline's.

texts       golden conversations as tokens: prefix, user, character
reader      logits, keys and values of a model as it is served
divergence  differences of two models' next tokens, by class, tier, language
codes       codes at the rail, and channels far larger than the others
"""
