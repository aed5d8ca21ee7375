"""Invents dialogues: text to train a small chat model on, without a download.

    personas.draw(rng)                 a character: several of a dozen facts
    talk.dialogue(rng, persona, …)     a tree of messages that fills the room

All sentences stand in `facts.py` and `lines.py`, all values in `words.py`. The
last values of each kind of fact, and the last phrasing of each question, are
left out unless a caller asks for them, so that a model can be tested on text
that it has not read. The draws depend on the generator's state alone.

The sources train on conversations of people. This grammar is ours, for a model
that is trained in minutes on a machine without data.
"""
