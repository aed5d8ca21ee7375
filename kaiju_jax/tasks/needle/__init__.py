"""The needle task: its rows, curriculum, questions and reports."""
