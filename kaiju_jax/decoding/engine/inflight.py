"""Calls that the device was given and whose results the host has not read."""

import collections
from collections.abc import Callable
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from kaiju_jax.decoding.engine import rounds
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.requests import request as request_lib

# Called with a sequence and the reason why it ends.
End = Callable[[sequence_lib.Sequence, str], None]


class ScoredTokens(NamedTuple):
  """The `count` tokens from position `begin` that a prefill scores."""

  one: sequence_lib.Sequence
  begin: int
  count: int


class _Flight(NamedTuple):
  """A call in flight; its sequences by their index in `packed`, its tokens.

  `judged_BLC` are the head's scores of a prefill's tokens, those that `prompts`
  says; None for a step, and without a head.
  """

  packed: jax.Array
  drawing: dict[int, sequence_lib.Sequence]
  judged_BLC: jax.Array | None
  prompts: dict[int, ScoredTokens]


class Flights:
  """The calls to read by round; `classes` is the head's C, 0 without one."""

  def __init__(self, classes: int = 0, alternatives: int = 0):
    self._classes = classes
    self._alternatives = alternatives
    self._rounds: collections.deque[list[_Flight]] = collections.deque()

  def __len__(self) -> int:
    """Returns how many rounds are not read."""
    return len(self._rounds)

  def open_round(self) -> None:
    self._rounds.append([])

  def add(
    self,
    packed: jax.Array,
    drawing: Mapping[int, sequence_lib.Sequence],
    judged_BLC: jax.Array | None = None,
    prompts: Mapping[int, ScoredTokens] | None = None,
  ) -> None:
    """Adds a call to the latest round.

    It draws the next tokens of `drawing`. `judged_BLC` are the head's scores of
    a prefill's tokens `prompts`. Both go by the index in `packed`.
    """
    for one in drawing.values():
      one.flying += 1
    flight = _Flight(packed, dict(drawing), judged_BLC, dict(prompts or {}))
    self._rounds[-1].append(flight)

  def finish_round(self, end: End) -> None:
    """Waits for the oldest round, and gives its tokens to its sequences."""
    flights = self._rounds[0]
    while flights:
      self._read(flights[0], end)
      del flights[0]
    self._rounds.popleft()

  def finish_rounds(self, end: End) -> None:
    """Waits for all rounds."""
    while self._rounds:
      self.finish_round(end)

  def resumed_scores(
    self,
    tree: prefix_tree.PrefixTree,
    match: prefix_tree.Match | None,
    end: End,
  ) -> np.ndarray | None:
    """Returns the head's scores of resumed tokens; None without any or a head.

    It waits for all rounds if a call that scores them is not read yet. A score
    is NaN if no call will give it.
    """
    if match is None or not self._classes:
      return None
    if np.isnan(tree.scores(match)).any():
      self.finish_rounds(end)
    return tree.scores(match)

  def _read(self, flight: _Flight, end: End) -> None:
    packed, drawing, judged_BLC, prompts = flight
    # Without this wait, chunks would pile up before a short prompt.
    jax.block_until_ready(packed)
    if judged_BLC is not None:
      _judge(np.asarray(judged_BLC), prompts, end)
    score_BC = None
    if drawing and self._classes and judged_BLC is None:
      score_BC = rounds.unpack_scores(packed, self._classes)
    drawn = [x_B.tolist() for x_B in rounds.unpack(packed)] if drawing else ()
    for place, one in list(drawing.items()):
      del drawing[place]
      one.flying -= 1
      score_C = None if score_BC is None else score_BC[place]
      if one.reason is None:
        token, log_probability = (x_B[place] for x_B in drawn)
        likeliest = self._likeliest(one, packed, place, token, log_probability)
        taken = one.take(token, log_probability, score_C, likeliest)
        _tell(one, taken, end)
      elif score_C is not None:
        one.take_late(score_C)
        _add_scores(one)

  def _likeliest(
    self, one: sequence_lib.Sequence, packed: jax.Array, place: int, *drawn
  ) -> request_lib.Alternatives:
    """Returns the alternatives to a drawn token that a sequence asks for."""
    count = one.request.alternatives
    if not count:
      return ()
    found = rounds.unpack_alternatives(packed, self._alternatives)
    return found.list(place, count, *drawn)


def _judge(judged_BLC: np.ndarray, prompts: dict[int, ScoredTokens], end: End):
  for place, (one, begin, count) in list(prompts.items()):
    del prompts[place]
    if one.reason is None:
      reason = one.judge(begin, judged_BLC[place, :count])
      _add_scores(one)
      _tell(one, reason, end)


def _add_scores(one: sequence_lib.Sequence) -> None:
  """Adds scores that were not known before to a sequence's points."""
  if one.points is not None:
    one.points.add_scores(one.text())


def _tell(one: sequence_lib.Sequence, reason: str | None, end: End) -> None:
  if reason is not None:
    end(one, reason)
