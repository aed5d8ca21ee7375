"""Compiles for hardware that is not here, and reads the result."""
