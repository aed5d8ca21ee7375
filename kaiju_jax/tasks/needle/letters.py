"""The needle in letters: a task whose rows are text, small enough for a toy.

A needle is a small letter and a capital, 'cK', in filler of digits and marks.
The question is a small letter that stood before; the answer is its capital:

    4;cK07.aB1,…cK;9…aB2…   c → K

A corpus of such documents is files of text. So a run has held-out documents and
a teacher's store like any run on text, which `data.task='needle'` lacks. There
are eight letters, and short documents have two or three. A model learns to
match these within minutes from a standard initialization, but not 64 keys
(`curriculum.py`). Chance is one capital in eight; a model that does not match
letters but picks one of the document's capitals is right more often.
"""

import os
import pathlib

import numpy as np

from kaiju_jax.data import tokenizer
from kaiju_jax.storage import files
from kaiju_jax.tasks.needle import questions as needle

KEYS = np.frombuffer(b'abcdefgh', np.uint8)
VALUES = np.frombuffer(b'ABCDEFGH', np.uint8)
FILLER = np.frombuffer(b'0123456789.,;:', np.uint8)
CHANCE = 1 / len(VALUES)
SHORTEST = 16  # Bytes of a document.


class Letters(needle.Pairs):
  """The task for the grid; implements `questions.Task`."""

  chance = CHANCE
  keys, values, bos = KEYS, VALUES, tokenizer.Bytes.bos_id

  def fits(self, length: int, distractors: int) -> bool:
    return distractors < len(KEYS) and super().fits(length, distractors)

  def fill(self, rng: np.random.Generator, shape: tuple[int, int]):
    return rng.choice(FILLER, shape).astype(np.int32)


def document(rng: np.random.Generator, size: int) -> str:
  """Draws a text of `size` bytes: a few needles, each several times."""
  count = int(rng.integers(2, min(len(KEYS), 1 + size // 7) + 1))
  pairs = min(size // 2, count * int(rng.integers(2, 9)))
  tokens = rng.choice(FILLER, size)
  start = needle.scatter(rng, 1, pairs, 2, size)[0]
  pair = rng.integers(count, size=pairs)
  tokens[start] = needle.distinct(rng, 1, count, KEYS)[0, pair]
  tokens[start + 1] = needle.distinct(rng, 1, count, VALUES)[0, pair]
  return tokens.tobytes().decode()


def write(
  path: str | os.PathLike[str], documents: int, length: int, seed: int = 0
) -> None:
  """Writes a .jsonl file of documents, whole or not at all.

  Their sizes are log-uniform: a model learns to match in short documents, and
  to reach far in long ones.

  Args:
    path: the file.
    documents: number of documents.
    length: tokens of the longest document, BOS included; at least 17.
    seed: the seed of every draw.

  Raises:
    OSError: the file cannot be written.
  """
  path = pathlib.Path(path)
  files.make_folder(path.parent)

  def drawn(number: int) -> str:
    rng = np.random.default_rng((seed, number))
    longest = length - 1
    size = SHORTEST * (longest / SHORTEST) ** rng.uniform()
    return document(rng, int(size))

  files.write_json_lines(path, ({'text': drawn(n)} for n in range(documents)))
