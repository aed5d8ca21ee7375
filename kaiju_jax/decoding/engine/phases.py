"""The phases of a sequence, and which may follow which.

    WAITING → PREFILLING → DRAWING or SEARCHING → ENDED

A sequence that loses its row is PARKED, and is prefilled again in its next row.
It may end in any phase.
"""

import enum


class Phase(enum.Enum):
  """The phase of a sequence between its request and its result."""

  WAITING = 'has had no row yet'
  PREFILLING = 'its row lacks a part of its text'
  DRAWING = 'its row holds its text, and it draws'
  SEARCHING = 'its row holds its prompt, and a search finds what follows'
  PARKED = 'had a row, and waits for another'
  ENDED = 'will not change'


NEXT = {
  Phase.WAITING: {Phase.PREFILLING, Phase.ENDED},
  Phase.PREFILLING: {
    Phase.DRAWING,
    Phase.SEARCHING,
    Phase.PARKED,
    Phase.ENDED,
  },
  Phase.DRAWING: {Phase.PARKED, Phase.ENDED},
  # It is parked only where its search could not begin.
  Phase.SEARCHING: {Phase.PARKED, Phase.ENDED},
  Phase.PARKED: {Phase.PREFILLING, Phase.ENDED},
  Phase.ENDED: set(),
}


def check(number: int, phase: Phase, following: Phase) -> None:
  """Refuses a phase that cannot follow; the ValueError names those that can."""
  if following not in NEXT[phase]:
    names = sorted(one.name for one in NEXT[phase])
    raise ValueError(
      f'sequence {number} is {phase.name} and cannot be {following.name}:'
      f' expected {", ".join(names) or "no other phase"}.'
    )
