"""Fits of curves to measured losses, with reasons to doubt each fit."""
