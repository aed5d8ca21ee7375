"""Prompts: characters, lore and conversations as tokens."""
