"""The needle: rows, curriculum, questions, reports and figures."""
