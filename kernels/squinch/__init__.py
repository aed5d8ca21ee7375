"""Squinch: gradients in 6 bits, for the wire."""
