"""Recall beyond one needle: several keys and values, chains, and counts."""
