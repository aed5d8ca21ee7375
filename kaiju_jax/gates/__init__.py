"""Decides whether a model may replace another: quantization, personas, caches."""
