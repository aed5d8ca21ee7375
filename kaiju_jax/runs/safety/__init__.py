"""From labelled texts to a gate and a token head with certified thresholds."""
