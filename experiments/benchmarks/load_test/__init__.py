"""Serves frozen loads by our engine and by others, and times them."""
