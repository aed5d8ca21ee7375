"""Tasks: the data that runs are trained and tested on.

`registry.py` lists them. A task has rows, an evaluator and the objectives that
its rows serve.

    needle      find the value behind a key, in letters or in text
    dialogues   invented conversations with characters, and questions about them
    facts       invented persons, for synthesis
"""
