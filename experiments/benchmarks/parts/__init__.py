"""Times parts of the stack and their peers, for `experiments/benchmarks`."""
