"""A needle in a haystack: questions, curriculum, report."""
