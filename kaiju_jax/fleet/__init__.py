"""Simulated traffic of conversations, and simulated caches of it."""
