"""The Kaiju stack in JAX: an int8-native, long-context language model.

A tensor's name ends in one capital letter per dimension (shape suffixes, Noam
Shazeer 2024). The key to the letters, for the whole project:

    B batch   L length (queries)   M memory (keys)   D model   V vocabulary
    F feed-forward   H heads   U heads of keys and values   K key size
    N repeats of a scanned layer block
    T teacher's top-k   C classes, or candidates of a beam search
    P pages   S slots of a page
    R rows, of a matrix or of a cache; the rank of an adapter
    G groups of eight rows (Squinch)
    I, J  rows of a query / key block in a kernel

Importing this package imports neither jax nor flax, so that experiment scripts
answer `--help` at once: import the module that you need
(`from kaiju_jax.model import transformer`).
"""

__version__ = '0.1.0'
