"""Compiling for hardware that is not here, and reading the result."""
