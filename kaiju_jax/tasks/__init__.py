"""Tasks: the data on which runs are trained and tested.

A task has rows, an evaluator and the objectives that its rows serve.
`registry.py` lists the tasks.

    needle          find the value behind a key, in letters or in text
    recall          several keys and values, chains of variables, counts
    conversations   chats to fine-tune on
    dialogues       invented conversations with characters, and questions about
                    them
    facts           invented persons, for synthesis
"""
