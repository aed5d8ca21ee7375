"""Ternary: changes of −1, 0 or 1, five to a byte, for the wire."""
