"""Requests: the prompt, how to sample, when to stop."""
