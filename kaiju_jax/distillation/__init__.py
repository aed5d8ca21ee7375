"""Samples a teacher's distributions, stores them, and reads them beside text.

`objectives/distillation.py` has the loss with which a student is trained.
"""
