"""Trains and certifies a gate and a token-level head on labelled texts."""
