"""A teacher's distributions, sampled: drawn, stored and read beside the text.

The loss that a student is trained with is `objectives/distillation.py`.
"""
