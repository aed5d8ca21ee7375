"""The code of results pages, one module or package per page."""
