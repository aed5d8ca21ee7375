"""Invented conversations: training rows, and questions about characters."""
