"""Decisions whether a model may replace another one."""
