"""Replies: tokens from the engine's thread become answers of the API."""
