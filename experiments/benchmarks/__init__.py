"""Benchmarks: one command per file, ratios within one run."""
