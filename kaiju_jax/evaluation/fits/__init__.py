"""Curves through measured losses, each with what speaks against it."""
