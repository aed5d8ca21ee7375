"""Texts to try code with: all of Unicode, and what the code looks for."""

from collections.abc import Sequence
import random

# Code points: ASCII, Latin and other letters, any plane.
_UP_TO = (0x7F, 0x2FF, 0xFFFF, 0x10FFFF)


def draw(rng: random.Random, longest: int, special: Sequence[str] = ()) -> str:
  """Returns a text of up to `longest` pieces.

  Args:
    rng: draws it.
    longest: pieces at most; a piece is a character or one of `special`.
    special: strings that shall occur often.
  """
  pieces = []
  for _ in range(rng.randrange(longest + 1)):
    if special and rng.random() < 0.4:
      pieces.append(rng.choice(special))
      continue
    point = rng.randint(0, rng.choice(_UP_TO))
    # A surrogate is no character.
    pieces.append('' if 0xD800 <= point <= 0xDFFF else chr(point))
  return ''.join(pieces)
