"""Reads a compiled program's HLO: its loops, collectives and matmuls."""
