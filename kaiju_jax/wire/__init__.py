"""Formats in which weights and gradients cross between devices."""
