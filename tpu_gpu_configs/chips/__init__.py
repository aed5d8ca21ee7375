"""Figures that a chip's maker publishes and that others measured on it."""
