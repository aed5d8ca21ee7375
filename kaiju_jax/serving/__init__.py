"""The server: who talks to whom, over HTTP, and what may be said.

    door      sockets, requests, tokens, limits, errors
    safety    the gate, the hold-back, certified thresholds
    cards     characters as people write them
    prompts   characters and conversations as tokens
    stores    characters, versions and conversations, kept

Here: the engine's thread (`worker`), a reply's way out (`reply`, `answers`),
and the addresses (`api`).
"""
