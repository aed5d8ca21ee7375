"""Decoding: a few queries a row against a cache of pages."""
