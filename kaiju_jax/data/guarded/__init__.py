"""Tokenizers in processes with limits, which read texts in pieces.

expressions.py    which characters a regular expression can read in a row
cuts.py           where a text can be cut without changing its tokens
process.py        the guarded processes
client.py         a tokenizer in such processes
"""
