"""Drift: whether traffic still looks like what codes were calibrated on."""
