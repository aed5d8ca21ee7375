"""What a model costs before it runs: parameters, bytes, seconds."""
