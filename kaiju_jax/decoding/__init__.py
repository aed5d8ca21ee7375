"""Decoding from a paged int8 cache, for one text or for many at once.

    requests   what a caller asks for: sampling, stop conditions, limits
    pages      which row holds which page: counts, the prefix tree, rings
    device     the cache's arrays and the calls that read and write them
    beam       beam search: many beams in one row
    engine     continuous batching: which request runs in which round

Imports point up this list only (`tests/test_floors.py`).
"""
