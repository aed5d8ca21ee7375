"""The needle in natural text: a magic number, hidden in ordinary prose.

    …haystack The magic number for London is 48213. haystack…
    The magic number for London is 48213

Tokens are bytes. A needle is one such sentence between any two bytes of real
text; the distractors are sentences with other cities and other numbers. The
question repeats the sentence up to the number. An answer is right if all its
digits are. Every city has six letters, so that all needles are equally long.
The distance is the index of the question's last byte less that of the needle's
first digit.

Questions are asked in held-out text. The sentence is common in public needle
tests; the rest is ours.
"""

from collections.abc import Sequence
import functools
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import packing
from kaiju_jax.data import text
from kaiju_jax.data import tokenizer
from kaiju_jax.tasks.needle import curriculum
from kaiju_jax.tasks.needle import questions as needle

_NAMES = (
  'Aachen Aarhus Ankara Asmara Athens Austin Bamako Beirut Bergen Berlin'
  ' Bilbao Bogota Boston Bremen Callao Cuenca Dallas Dayton Denver Douala'
  ' Dublin Durham Geneva Harare Havana Kigali Kuwait Leiden Lisbon London'
  ' Luanda Lusaka Madrid Malabo Malaga Manila Maputo Merida Monaco Moscow'
  ' Mumbai Munich Murcia Muscat Nagoya Naples Nassau Newark Niamey Odense'
  ' Odessa Ottawa Oxford Panama Prague Puebla Recife Riyadh Samara Santos'
  ' Skopje Taipei Tehran Tirana Toledo Tromso Venice Verona Vienna Warsaw'
  ' Zagreb Zurich'
)
CITIES = tuple(_NAMES.split())
DIGITS = 5
CHANCE = 10.0**-DIGITS
# Weight of an answer's digit in the loss; a byte of the haystack has weight 1.
# Answers are only a few bytes of a row.
ANSWER_WEIGHT = 10.0

_ASK = ' The magic number for %s is '
_END = '. '


def _bytes(strings: Sequence[str]) -> np.ndarray:
  """Returns the equally long strings as int32[N, bytes]."""
  return np.array([list(string.encode()) for string in strings], np.int32)


_ASKED = _bytes([_ASK % city for city in CITIES])
_DIGIT = _bytes('0123456789')[:, 0]
ASK_SIZE = _ASKED.shape[1]
SIZE = ASK_SIZE + DIGITS + len(_END)


def sentences(
  rng: np.random.Generator, rows: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
  """Draws needles whose cities and numbers differ within each row.

  Returns:
    The bytes, int32[rows, count, SIZE], and the digits among them, int32[rows,
    count, DIGITS].
  """
  cities = needle.distinct(rng, rows, count, range(len(CITIES)))
  # The numbers differ because their first two digits do.
  first = needle.distinct(rng, rows, count, range(100))
  rest = rng.integers(10, size=(rows, count, DIGITS - 2))
  numbers = np.concatenate(
    [first[:, :, None] // 10, first[:, :, None] % 10, rest], axis=2
  )
  digits = _DIGIT[numbers]
  end = np.broadcast_to(_bytes([_END])[None], (rows, count, len(_END)))
  return np.concatenate([_ASKED[cities], digits, end], axis=2), digits


def place(tokens: np.ndarray, starts: np.ndarray, things: np.ndarray) -> None:
  """Writes things [rows, count, size] into tokens [rows, L] at `starts`."""
  columns = starts[:, :, None] + np.arange(things.shape[2])[None, None]
  rows = np.arange(len(tokens))[:, None, None]
  tokens[rows, columns] = things


class Haystack:
  """Real text that may be cut anywhere."""

  def __init__(self, tokens: np.ndarray):
    """Takes bytes, and replaces each BOS between documents by a newline."""
    tokens = tokens.astype(np.int32)
    tokens[tokens == tokenizer.Bytes.bos_id] = ord('\n')
    self._tokens = tokens

  def cut(self, rng: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """Returns int32[rows, size], each row cut at a random place.

    A cut that passes the text's end continues at its beginning.
    """
    first = rng.integers(len(self._tokens), size=(rows, 1))
    columns = (first + np.arange(size)[None]) % len(self._tokens)
    return self._tokens[columns]


def haystacks(
  corpus: text.Corpus, held_out: float
) -> tuple[Haystack, Haystack]:
  """Returns text to train on, and text for questions.

  The text for questions is the last `held_out` of all bytes, so that a folder
  with a single file is enough. With held_out=0 both are the same text.

  Args:
    corpus: the bytes of all documents.
    held_out: a fraction of the bytes.
  """
  kept = int(len(corpus.tokens) * (1 - held_out))
  training = Haystack(corpus.tokens[:kept])
  return training, Haystack(corpus.tokens[kept:]) if held_out else training


def fill(
  rng: np.random.Generator, haystack: Haystack, starts: np.ndarray, room: int
) -> np.ndarray:
  """Returns int32[rows, room]: text, with gaps for needles at `starts`."""
  rows, count = starts.shape
  hidden = np.zeros((rows, room), bool)
  columns = starts[:, :, None] + np.arange(SIZE)[None, None]
  np.put_along_axis(hidden, columns.reshape(rows, -1), True, axis=1)
  body = np.zeros((rows, room), np.int32)
  body[~hidden] = haystack.cut(rng, rows, room - count * SIZE).ravel()
  return body


class Sentences:
  """The task for the grid; implements `questions.Task`."""

  chance = CHANCE

  def __init__(self, haystack: Haystack):
    self._haystack = haystack

  def distances(self, length: int) -> tuple[int, int]:
    return SIZE - 1, length - DIGITS - 1 - ASK_SIZE

  def fits(self, length: int, distractors: int) -> bool:
    # The question's needle divides the room, which can leave a gap too short
    # for another needle.
    room = self._body(length) - SIZE
    return distractors * SIZE + SIZE - 1 <= room

  def questions(
    self,
    rng: np.random.Generator,
    count: int,
    length: int,
    distance: int,
    distractors: int,
  ) -> needle.Questions:
    body = self._body(length)
    before = length - DIGITS - distance - ASK_SIZE - 1
    others = needle.scatter(
      rng, count, distractors, SIZE, body - SIZE, wall=before
    )
    others += SIZE * (others >= before)
    target = np.full((count, 1), before)
    starts = np.concatenate([target, others], axis=1)
    needles, digits = sentences(rng, count, 1 + distractors)
    body_BL = fill(rng, self._haystack, starts, body)
    place(body_BL, starts, needles)
    bos_BL = np.full((count, 1), tokenizer.Bytes.bos_id, np.int32)
    question_BL = needles[:, 0, : ASK_SIZE + DIGITS - 1]
    tokens_BL = np.concatenate([bos_BL, body_BL, question_BL], axis=1)
    return needle.Questions(tokens_BL, digits[:, 0])

  def _body(self, length: int) -> int:
    """Returns the bytes between BOS and the question."""
    return length - 1 - ASK_SIZE - (DIGITS - 1)


class TextStage(NamedTuple):
  """A part of the curriculum: documents of one length."""

  length: int  # Bytes of a document.
  share: int  # Part of the run's rows, relative to the sum over the curriculum.


# Documents in a row, and the share of the run, of each stage.
_CURRICULUM = (4, 4), (2, 2), (1, 2)


def rows(
  haystack: Haystack, count: int, length: int, seed: int = 0
) -> curriculum.Rows:
  """Returns training rows: text with needles in it, then questions on them.

  A document of n bytes has up to n / (4·SIZE) needles, and asks for each once
  at its end. A byte of the haystack has weight 1 in the loss, a digit of an
  answer ANSWER_WEIGHT. A digit of a needle has weight 0, because nothing
  predicts it.

  Args:
    haystack: training text.
    count: rows of the run.
    length: tokens per row.
    seed: the seed of every draw.

  Raises:
    ValueError: rows too short for the shortest documents.
  """
  shortest = 4 * SIZE * max(documents for documents, _ in _CURRICULUM)
  if length < shortest:
    raise ValueError(
      f'data.length={length}: must be at least {shortest}, so that the first'
      ' documents of the curriculum hold a needle and a question.'
    )
  stages = [TextStage(length // n, share) for n, share in _CURRICULUM]
  draw = functools.partial(_document, haystack)
  return curriculum.Rows(count, length, seed, stages, draw)


def _document(
  haystack: Haystack, rng: np.random.Generator, stage: TextStage
) -> packing.Piece:
  size = stage.length
  most = min(size // (4 * SIZE), len(CITIES))
  count = int(rng.integers(1, most + 1))
  room = size - 1 - count * SIZE
  starts = needle.scatter(rng, 1, count, SIZE, room)
  needles, _ = sentences(rng, 1, count)
  body = fill(rng, haystack, starts, room)
  place(body, starts, needles)
  order = rng.permutation(count)
  tokens = np.concatenate(
    [[tokenizer.Bytes.bos_id], body[0], needles[0, order].ravel()]
  )
  weights = np.ones(size, np.float32)
  digits = ASK_SIZE + np.arange(DIGITS)[None]
  weights[1 + starts[0][:, None] + digits] = 0
  answer_places = 1 + room + SIZE * np.arange(count)[:, None]
  weights[answer_places + digits] = ANSWER_WEIGHT
  return packing.Piece(tokens, weights=weights)
