"""Stores: keep characters, their versions and conversations (sqlite, Redis)."""
