"""Calls of rounds that were dispatched and are not read yet."""

import collections
from collections.abc import Callable
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from kaiju_jax.decoding.engine import rounds
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.pages import prefix_tree

# Is told of a sequence why it ends.
End = Callable[[sequence_lib.Sequence, str], None]


class Judged(NamedTuple):
  """The tokens of a sequence that a prefill judges.

  Attributes:
    one: the sequence.
    begin: the position of the first of them.
    count: how many there are.
  """

  one: sequence_lib.Sequence
  begin: int
  count: int


class _Flight(NamedTuple):
  """A call; its sequences by their index in `packed`.

  Attributes:
    packed: what it returned.
    drawing: whose next token it draws.
    judged_BLC: what a head gives the tokens of a prefill; None of a step, and
      without a head.
    prompts: what it judges.
  """

  packed: jax.Array
  drawing: dict[int, sequence_lib.Sequence]
  judged_BLC: jax.Array | None
  prompts: dict[int, Judged]


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
    judged_BLC: jax.Array | None = None,
    prompts: Mapping[int, Judged] | None = None,
  ) -> None:
    """Adds a call to the latest round.

    Args:
      packed: what it returned (`rounds.py`).
      drawing: whose token it draws, by their index there.
      judged_BLC: what a head gives the tokens of a prefill.
      prompts: which of them these are, by their index there.
    """
    for one in drawing.values():
      one.flying += 1
    flight = _Flight(packed, dict(drawing), judged_BLC, dict(prompts or {}))
    self._rounds[-1].append(flight)

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

  def resumed_scores(
    self,
    tree: prefix_tree.PrefixTree,
    match: prefix_tree.Match | None,
    end: End,
  ) -> np.ndarray | None:
    """Returns what the head gave tokens that are resumed; None without any.

    Waits for all rounds if the call that judged them is not read yet. NaN where
    nothing will say it.
    """
    if match is None or not self._classes:
      return None
    if np.isnan(tree.scores(match)).any():
      self.settle_all(end)
    return tree.scores(match)

  def _read(self, flight: _Flight, end: End) -> None:
    packed, drawing, judged_BLC, prompts = flight
    # Chunks that no one waited for would pile up before a short prompt.
    jax.block_until_ready(packed)
    if judged_BLC is not None:
      _judge(np.asarray(judged_BLC), prompts, end)
    score_BC = None
    if drawing and self._classes and judged_BLC is None:
      score_BC = rounds.unpack_scores(packed, self._classes)
    drawn = rounds.unpack(packed) if drawing else ()
    for place, one in list(drawing.items()):
      del drawing[place]
      one.flying -= 1
      score_C = None if score_BC is None else score_BC[place]
      if one.reason is None:
        taken = one.take(*(x_B[place].item() for x_B in drawn), score_C)
        _tell(one, taken, end)
      elif score_C is not None:
        one.take_late(score_C)
        _add_scores(one)


def _judge(judged_BLC: np.ndarray, prompts: dict[int, Judged], end: End):
  for place, (one, begin, count) in list(prompts.items()):
    del prompts[place]
    if one.reason is None:
      reason = one.judge(begin, judged_BLC[place, :count])
      _add_scores(one)
      _tell(one, reason, end)


def _add_scores(one: sequence_lib.Sequence) -> None:
  """Gives a sequence's points the scores that were not known before."""
  if one.points is not None:
    one.points.add_scores(one.text())


def _tell(one: sequence_lib.Sequence, reason: str | None, end: End) -> None:
  if reason is not None:
    end(one, reason)
