"""Beam search: beams share one row's slots and differ in what they see."""
