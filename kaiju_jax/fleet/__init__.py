"""The fleet without a model: traffic, and what caches keep of it."""
