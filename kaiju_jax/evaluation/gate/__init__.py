"""The quantization gate: a candidate's tokens and codes beside a baseline's.

golden_tokens  golden conversations as tokens: prefix, user, character
reader         logits, keys and values of a model as it is served
divergence     differences of two models' next tokens
kv_channels    codes at the rail, and channels far larger than the others
paired_loss    right answers that the candidate loses
calibration_changes, calibration_texts
               what int8 was calibrated to, and on which conversations
"""
