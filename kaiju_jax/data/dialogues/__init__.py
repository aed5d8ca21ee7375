"""Invented dialogues: text to train a small chat model on, without a download.

    personas.draw(rng)                 a character: several of a dozen facts
    talk.dialogue(rng, persona, room)  a tree of messages, to fill the room

All sentences stand in `facts.py` and `lines.py`, all values in `words.py`. The
last values of each list, and the last phrasing of each question, are left out
unless asked for, so that a model can be tested on what it has not read. What is
drawn depends on the generator's state alone.

The sources train on conversations of people; this grammar is ours, for a model
that is trained in minutes on a machine without data.
"""
