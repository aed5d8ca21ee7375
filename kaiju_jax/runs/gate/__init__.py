"""From labelled texts to a gate with certified thresholds."""
