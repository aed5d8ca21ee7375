"""Draws rows of a text, each with a needle, on which layouts are judged.

A needle is a sentence with a number, which is asked for at its row's end. A row
has one: several distract each other, even in a model that sees everything, so
that they hardly show what a layer does for one.

The end of a row begins the needle's sentence, which the model goes on with. A
model that chats is also asked a question, in every other row and in its chat
template: to go on with words that stand in the text is easier than to know by a
question that the text has its answer, and layouts that keep the first can lose
the second. So there the whole reply counts, and not its digits alone.
"""

from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import chat
from kaiju_jax.interchange.surgery import trial
from kaiju_jax.model import config as model_config
from kaiju_jax.tasks.needle import text as needle_text

# Rows that are measured on, and tokens of each.
ROWS, LENGTH = 6, 1536
DRAWS = 4  # Of needles; the teacher finds those of one best.
_ASK = ' The magic number for %s is'
_REPLY = 'The secret code is %s.'
_QUESTION = 'What is the secret code?'


class _Needle(NamedTuple):
  """The tokens of a row that are not its text."""

  opening_L: np.ndarray
  needle_L: np.ndarray
  question_L: np.ndarray  # Behind the text.
  answer_L: np.ndarray
  is_answer_L: np.ndarray  # Which tokens of the answer count.


def draw(
  text: np.ndarray,
  tokenizer: Any,
  config: model_config.ModelConfig,
  format: chat.Format | None = None,
  seed: int = 0,
) -> trial.Rows:
  """Returns rows of a text with a needle in each, asked for at the end.

  The needles of all rows are at evenly spaced depths.

  Args:
    text: tokens that a run holds out.
    tokenizer: the text's.
    config: the teacher's.
    format: of the teacher's chats; None asks no questions.
    seed: of the needles.

  Raises:
    ValueError: the text or the rows are too short.
  """
  length = min(LENGTH, config.max_length)
  if len(text) < ROWS * length:
    raise ValueError(
      f'the text holds out {len(text):,} tokens: must be at least'
      f' {ROWS * length:,}, {ROWS} rows to measure layouts on.'
    )
  rng = np.random.default_rng(seed)
  cities = rng.choice(needle_text.CITIES, ROWS, replace=False)
  rows, read = [], 0
  for row, city in enumerate(cities):
    number = f'{rng.integers(10**5):05}'
    if format is None or row % 2 == 0:
      needle = _continued(tokenizer, city, number)
    else:
      needle = _asked(tokenizer, format, number)
    room = length - sum(map(len, needle[:-1]))
    if room < length // 2:
      raise ValueError(
        f'rows of {length} tokens: a needle and its question leave'
        f' {max(room, 0)} for text, which is less than half.'
      )
    place = read + int((row + 0.5) / ROWS * room)
    parts = [
      (needle.opening_L, False, False),
      (text[read:place], True, False),
      (needle.needle_L, False, False),
      (text[place : read + room], True, False),
      (needle.question_L, False, False),
      (needle.answer_L, False, needle.is_answer_L),
    ]
    read += room
    rows.append(
      [
        np.concatenate(
          [np.broadcast_to(part[n], len(part[0])) for part in parts]
        )
        for n in range(3)
      ]
    )
  tokens, is_text, is_answer = map(np.stack, zip(*rows))
  return trial.Rows(tokens.astype(np.int32), is_text, is_answer)


def draw_several(
  text: np.ndarray,
  tokenizer: Any,
  config: model_config.ModelConfig,
  format: chat.Format | None = None,
) -> list[trial.Rows]:
  """Returns `DRAWS` draws of rows, of other needles each."""
  return [draw(text, tokenizer, config, format, seed) for seed in range(DRAWS)]


def _continued(tokenizer, city: str, number: str) -> _Needle:
  """Returns a needle whose sentence is gone on with; its digits count."""
  ask_L, number_L, end_L = (
    tokenizer.encode(part) for part in (_ASK % city, f' {number}', '.')
  )
  is_digit = [
    any(letter.isdigit() for letter in tokenizer.decode([token]))
    for token in number_L
  ]
  return _Needle(
    np.array([tokenizer.bos_id]),
    np.concatenate([ask_L, number_L, end_L]),
    ask_L,
    np.concatenate([number_L, end_L]),
    np.array(is_digit + [False] * len(end_L)),
  )


def _asked(tokenizer, format: chat.Format, number: str) -> _Needle:
  """Returns a needle that a user asks for; the whole reply counts."""
  prompt_L = format.prompt([('user', _QUESTION)])
  # The text stands in the user's message, before the question.
  is_question_L = np.diff(format.locate('user', _QUESTION))[:, 0] > 0
  begin = len(format.head_L) + int(is_question_L.argmax())
  answer_L = tokenizer.encode(_REPLY % number)
  return _Needle(
    prompt_L[:begin],
    tokenizer.encode(f' {_REPLY % number}'),
    np.concatenate([tokenizer.encode('\n\n'), prompt_L[begin:]]),
    answer_L,
    np.ones(len(answer_L), bool),
  )
