"""The host's account of pages: counts, prefix tree, rings and eviction."""
