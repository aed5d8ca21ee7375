"""Pages on the host: counts, the prefix tree, rings, eviction. No arrays."""
