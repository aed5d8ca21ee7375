"""Scores that people gave to played conversations, to hold a judge against.

A file of them is strict JSONL; one line is one rated conversation:

    {"conversation": "official-tilda", "replies": ["…", … eight of them …],
     "scores": {"speech": 4, "backstory": 5, "goal": 3}, "date": "2026-11-01"}

`conversation` is the id of a golden conversation, `replies` a responder's
answers to its eight messages, `scores` a person's, from 1 to 5, and `date` the
day of the rating.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import reading
from kaiju_jax.evaluation.persona import golden
from kaiju_jax.storage import strict


class Label(NamedTuple):
  """A person's scores of one played conversation."""

  conversation: golden.GoldenConversation
  replies: tuple[str, ...]  # A reply per turn.
  scores: Mapping[str, int]  # By property, 1…5.
  date: datetime.date  # The day of the rating.


def load(
  path: str | pathlib.Path, conversations: Sequence[golden.GoldenConversation]
) -> tuple[Label, ...]:
  """Returns a file's labels.

  Raises:
    OSError: the file cannot be read.
    ValueError: names the line, the field, its value and what would be right.
  """
  known = {one.id: one for one in conversations}
  rated: set[tuple[str, tuple[str, ...]]] = set()

  def parse(data: Any) -> Label:
    one = _parse(data, known)
    key = one.conversation.id, one.replies
    if key in rated:
      raise ValueError(
        f'conversation={key[0]!r}: the same replies are rated twice.'
      )
    rated.add(key)
    return one

  return tuple(reading.parse_lines(path, parse))


@dataclasses.dataclass(frozen=True)
class _Scores:
  speech: int
  backstory: int
  goal: int


@dataclasses.dataclass(frozen=True)
class _Line:
  """A line of the file."""

  conversation: str
  replies: tuple[str, ...]
  scores: _Scores
  date: str


def _parse(data: Any, known: Mapping[str, golden.GoldenConversation]) -> Label:
  line = strict.parse(_Line, data)
  if line.conversation not in known:
    raise ValueError(
      f'conversation={line.conversation!r}: no golden conversation has this id.'
    )
  if len(line.replies) != golden.TURNS:
    raise ValueError(f'replies: must be a list of {golden.TURNS} strings.')
  scores = dataclasses.asdict(line.scores)
  for name, value in scores.items():
    if not 1 <= value <= 5:
      raise ValueError(
        f'scores.{name}={value!r}: must be a whole number from 1 to 5.'
      )
  try:
    date = datetime.date.fromisoformat(line.date)
  except ValueError:
    raise ValueError(
      f'date={line.date!r}: must be a day, such as "2026-11-01".'
    ) from None
  return Label(known[line.conversation], line.replies, scores, date)
