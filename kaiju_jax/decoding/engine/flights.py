"""Calls of rounds that were dispatched and are not read yet."""

import collections
from collections.abc import Callable
from collections.abc import Mapping
from typing import NamedTuple

import jax

from kaiju_jax.decoding.engine import rounds
from kaiju_jax.decoding.engine import sequence as sequence_lib

# Is told of a sequence why it ends.
End = Callable[[sequence_lib.Sequence, str], None]


class _Flight(NamedTuple):
  """A call; its sequences by their index in `packed`.

  Attributes:
    packed: what it returned.
    prompts: chunks of whose prompts it judges.
    drawing: whose next token it draws.
  """

  packed: jax.Array
  prompts: dict[int, sequence_lib.Sequence]
  drawing: dict[int, sequence_lib.Sequence]


class Flights:
  """What is to be read, round by round."""

  def __init__(self, classes: int = 0):
    """Begins without any.

    Args:
      classes: C, dimensions of the token-level head; 0 without one.
    """
    self._classes = classes
    self._rounds: collections.deque[list[_Flight]] = collections.deque()

  def __len__(self) -> int:
    """Returns how many rounds are not read."""
    return len(self._rounds)

  def begin(self) -> None:
    """Begins a round."""
    self._rounds.append([])

  def add(
    self,
    packed: jax.Array,
    drawing: Mapping[int, sequence_lib.Sequence],
    prompts: Mapping[int, sequence_lib.Sequence],
  ) -> None:
    """Adds a call to the latest round.

    Args:
      packed: what it returned (`rounds.py`).
      drawing: whose token it draws, by their index there.
      prompts: whose prompt's chunk it ran, by their index there.
    """
    for one in drawing.values():
      one.flying += 1
    # What it drew before it was parked runs again, and was judged.
    judged = {
      place: one
      for place, one in prompts.items()
      if self._classes and one.length == one.prompt
    }
    self._rounds[-1].append(_Flight(packed, judged, dict(drawing)))

  def settle(self, end: End) -> None:
    """Waits for the oldest round, and gives its tokens to its sequences."""
    flights = self._rounds[0]
    while flights:
      self._read(flights[0], end)
      del flights[0]
    self._rounds.popleft()

  def settle_all(self, end: End) -> None:
    """Waits for all rounds."""
    while self._rounds:
      self.settle(end)

  def _read(self, flight: _Flight, end: End) -> None:
    packed, prompts, drawing = flight
    # Chunks that no one waited for would pile up before a short prompt.
    jax.block_until_ready(packed)
    score_BC = rounds.judged(packed, self._classes) if self._classes else None
    for place, one in list(prompts.items()):
      del prompts[place]
      if one.reason is None:
        _tell(one, one.judge(score_BC[place]), end)
    drawn = rounds.unpacked(packed) if drawing else ()
    for place, one in list(drawing.items()):
      del drawing[place]
      one.flying -= 1
      if one.reason is None:
        score_C = None if score_BC is None else score_BC[place]
        taken = one.take(*(x_B[place].item() for x_B in drawn), score_C)
        _tell(one, taken, end)


def _tell(one: sequence_lib.Sequence, reason: str | None, end: End) -> None:
  if reason is not None:
    end(one, reason)
