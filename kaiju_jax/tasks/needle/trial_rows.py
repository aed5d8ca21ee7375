"""Draws rows of a text with needles in them, on which layouts are judged.

A needle is a sentence with a number, which is asked for at its row's end.
"""

from typing import Any

import numpy as np

from kaiju_jax.interchange.surgery import trial
from kaiju_jax.model import config as model_config
from kaiju_jax.tasks.needle import text as needle_text

# Rows that are measured on, tokens of each, and needles in each.
ROWS, LENGTH, NEEDLES = 3, 2048, 3
DRAWS = 4  # Of needles; the teacher finds those of one best.
_ASK = ' The magic number for %s is'


def draw(
  text: np.ndarray,
  tokenizer: Any,
  config: model_config.ModelConfig,
  seed: int = 0,
) -> trial.Rows:
  """Returns rows of a text with needles in it, and their questions at the end.

  The needles of all rows together are at evenly spaced depths.

  Args:
    text: tokens that a run holds out.
    tokenizer: the text's.
    config: the teacher's.
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
  count = ROWS * NEEDLES
  rows, read = [], 0
  for row in range(ROWS):
    needles = [
      _needle(tokenizer, city, f'{rng.integers(10**5):05}')
      for city in rng.choice(needle_text.CITIES, NEEDLES, replace=False)
    ]
    room = length - 1 - 2 * sum(len(tokens) for tokens, _ in needles)
    if room < length // 2:
      raise ValueError(
        f'rows of {length} tokens: {NEEDLES} needles and their questions leave'
        f' {max(room, 0)} for text, which is less than half.'
      )
    places = [
      int((row + ROWS * n + 0.5) / count * room) for n in range(NEEDLES)
    ]
    pieces = np.split(text[read : read + room], places)
    read += room
    parts = [(np.array([tokenizer.bos_id]), False, False)]
    for piece, (tokens, _) in zip(pieces, needles):
      parts += [(piece, True, False), (tokens, False, False)]
    parts.append((pieces[-1], True, False))
    for index in rng.permutation(NEEDLES):
      tokens, is_digit = needles[index]
      parts.append((tokens, False, is_digit))
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
  text: np.ndarray, tokenizer: Any, config: model_config.ModelConfig
) -> list[trial.Rows]:
  """Returns `DRAWS` draws of rows, of other needles each."""
  return [draw(text, tokenizer, config, seed) for seed in range(DRAWS)]


def _needle(tokenizer, city: str, number: str):
  """Returns the tokens of a needle, and which of them are its number's."""
  asked, answer, end = (
    tokenizer.encode(part) for part in (_ASK % city, f' {number}', '.')
  )
  is_digit = [
    any(letter.isdigit() for letter in tokenizer.decode([token]))
    for token in answer
  ]
  return (
    np.concatenate([asked, answer, end]),
    np.array([False] * len(asked) + is_digit + [False] * len(end)),
  )
