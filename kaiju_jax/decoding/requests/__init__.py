"""Requests to an engine: sampling, stop conditions and limits."""
