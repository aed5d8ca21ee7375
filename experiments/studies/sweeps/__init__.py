"""Grids of small runs, and what is read off them together."""
