"""Lists the words of the dialogues."""

from collections.abc import Mapping
import functools
import re

from kaiju_jax.data.dialogues import facts
from kaiju_jax.data.dialogues import lines
from kaiju_jax.data.dialogues import words

# Parts of invented names, which are no words.
_PARTS = ('SYLLABLES', 'ENDINGS')


@functools.lru_cache(maxsize=1)
def list_words() -> frozenset[str]:
  """Returns all words, in lower case, of which dialogues are made.

  Invented names are not among them.
  """
  found: set[str] = set()

  def collect(value):
    if isinstance(value, str):
      text = re.sub(r'\{\w+\}', ' ', value)
      found.update(words_of(text))
    elif isinstance(value, Mapping):
      collect(tuple(value))
      collect(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
      for one in value:
        collect(one)

  for module in facts, lines, words:
    for name, value in vars(module).items():
      if name.isupper() and name not in _PARTS:
        collect(value)
  return frozenset(found | {'an'})


def words_of(text: str) -> list[str]:
  """Returns a text's words in lower case, without marks."""
  cut = re.split(r"[^\w']+", text.lower())
  return [one for one in (word.strip("'") for word in cut) if one]
