"""Replies: turn tokens from the engine's thread into answers of the API."""
