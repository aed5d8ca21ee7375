"""What may be said: the gate, the hold-back, certified thresholds."""
