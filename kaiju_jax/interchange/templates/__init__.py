"""Compiles a folder's chat template into a `chat.Format`."""
