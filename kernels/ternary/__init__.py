"""Ternary: packs five changes of −1, 0 or 1 into a byte, for the wire."""
