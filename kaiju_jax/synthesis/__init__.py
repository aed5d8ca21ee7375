"""Synthetic question-answer variations of passages, as trees of text."""
