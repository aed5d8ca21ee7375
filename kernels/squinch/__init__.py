"""Squinch: encodes gradients in 6 bits per number, for the wire."""
