"""Writes a passage and its variations as one tree of text.

The passage is the root, each variation a child of it. Variations see the
passage and not each other, and a row holds the passage's tokens once:

    P + Σ Q    tokens, where separate documents would take nP + Σ Q

A line of the file can be read by `data/documents.py`. It keeps each variation's
seed and scores beside its text.
"""

from collections.abc import Sequence
from typing import Any

from kaiju_jax.synthesis import form as form_lib
from kaiju_jax.synthesis import variations as variations_lib


def record(
  form: form_lib.Form,
  passage: variations_lib.Passage,
  kept: Sequence[variations_lib.Variation],
) -> dict[str, Any]:
  """Returns the line of a passage; the header is not part of its text."""
  children = [
    {
      'text': form.variation(one.question, one.answer),
      'parent': 0,
      'seed': one.seed,
      'number': one.number,
      'informed': one.informed,
      'uninformed': one.uninformed,
    }
    for one in kept
  ]
  root = {'text': passage.text, 'parent': -1}
  return {'passage': passage.name, 'segments': [root, *children]}
