"""Characters: their cards, and prompts made of them and of a conversation.

    cards      characters as people write them: fields, JSON, PNG
    prompts    characters and conversations as tokens

Training reads them too: a model learns the prompts that a server makes.
"""
