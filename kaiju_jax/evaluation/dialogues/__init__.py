"""Invented dialogues: what the small chat model reads, and is asked."""
