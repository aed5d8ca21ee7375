"""Continuous batching: requests in, rounds on the device, tokens out."""
