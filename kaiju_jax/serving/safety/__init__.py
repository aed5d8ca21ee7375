"""Safety: the gate, the hold-back, and the certified thresholds of both."""
