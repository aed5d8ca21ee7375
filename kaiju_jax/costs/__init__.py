"""Estimates a model's costs before it runs: parameters, bytes, seconds."""
