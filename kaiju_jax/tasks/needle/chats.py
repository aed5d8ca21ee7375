"""Draws conversations that ask for a sentence in a text, to train students on.

    user        …text. The magic number for Madrid is 48213. text…

                Which number belongs to Madrid?
    assistant   The magic number for Madrid is 48213.

Windows lose first what a question asks for, and training on text alone does not
bring it back; training on questions does (`results/smollm2.md`). The reply is
the sentence, so that nothing is to be known but the text.
"""

from collections.abc import Iterator
import string
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import documents
from kaiju_jax.data.dialogues import words
from kaiju_jax.tasks.needle import text as needle_text

# No other training row is drawn from this seed (`tasks/dialogues/golden.py`).
_SEED = 2**36


class _Kind(NamedTuple):
  """A kind of sentence."""

  sentence: str  # Also the reply.
  questions: tuple[str, ...]


# None is of a secret code, by which `trial_rows.py` and public tools measure.
_KINDS = (
  _Kind(
    'The magic number for {city} is {number}.',
    (
      'What is the magic number for {city}?',
      'Which number belongs to {city}?',
    ),
  ),
  _Kind(
    '{name} keeps {number} books in {city}.',
    (
      'How many books does {name} keep in {city}?',
      'How many books are there in {city}?',
    ),
  ),
  _Kind(
    'The password of the {place} in {city} is {word}.',
    (
      'What is the password of the {place} in {city}?',
      'What is the password?',
    ),
  ),
  _Kind(
    'The meeting with {name} begins at {hour}:{minute}.',
    (
      'When does the meeting with {name} begin?',
      'When does the meeting begin?',
    ),
  ),
  _Kind(
    "{name}'s favourite colour is {colour}.",
    (
      "What is {name}'s favourite colour?",
      'Which colour does {name} like best?',
    ),
  ),
  _Kind(
    'Box number {number} belongs to {name}.',
    (
      'Which box belongs to {name}?',
      'What is the number of the box that belongs to {name}?',
    ),
  ),
  _Kind(
    'The licence plate is {word}.',
    (
      'What is the licence plate?',
      'Which licence plate was named?',
    ),
  ),
)
_CHARACTERS = string.ascii_lowercase + string.digits


def draw(
  text: str, count: int, size: int, seed: int = 0
) -> Iterator[dict[str, Any]]:
  """Yields records of conversations to fine-tune on (`data/conversations.py`).

  Args:
    text: what passages are cut from.
    count: how many conversations.
    size: characters of a passage.
    seed: of the passages, sentences and questions.

  Raises:
    ValueError: the text is shorter than a passage.
  """
  if len(text) < size:
    raise ValueError(
      f'the text has {len(text):,} characters: must have at least'
      f' size={size:,}.'
    )
  for number in range(count):
    rng = np.random.default_rng((_SEED, seed, number))
    begin = rng.integers(len(text) - size + 1)
    parts = text[begin : begin + size].split(' ')
    kind = _KINDS[rng.integers(len(_KINDS))]
    values = _values(rng)
    sentence = kind.sentence.format(**values)
    question = rng.choice(kind.questions).format(**values)
    parts.insert(rng.integers(len(parts) + 1), sentence)
    asked = f'{" ".join(parts)}\n\n{question}'
    yield {
      'messages': [
        {'role': 'user', 'content': asked},
        {'role': 'assistant', 'content': sentence},
      ]
    }


def draw_from(path: str, *of: int) -> Iterator[dict[str, Any]]:
  """Returns conversations as `draw` does, of a file, folder or glob.

  Raises:
    ValueError, OSError: as `draw` and `documents.read`.
  """
  found = documents.read(path, field='text')
  return draw('\n'.join(part for one in found for part in one.segments), *of)


def _values(rng: np.random.Generator) -> dict[str, str]:
  """Returns what stands for each name in braces."""
  return {
    'city': str(rng.choice(needle_text.CITIES)),
    'name': str(rng.choice(words.NAMES)),
    'place': str(rng.choice(words.PLACES)),
    'colour': str(rng.choice(words.COLOURS)),
    'number': _string(rng, string.digits, rng.choice((3, 5, 7))),
    'word': _string(rng, _CHARACTERS, rng.choice((6, 8, 10))),
    'hour': str(rng.integers(1, 13)),
    'minute': str(rng.choice(('00', '15', '30', '45'))),
  }


def _string(rng: np.random.Generator, characters: str, length: int) -> str:
  """Returns random characters."""
  return ''.join(rng.choice(list(characters), length))
