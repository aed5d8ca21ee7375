"""Paged decode: attention of a few queries per row to a cache of pages."""
