"""Which sequence joins next, and whose prompt is prefilled next.

Joining. Sequences wait for a row and its pages, and join in the order in which
they came. One that does not fit yet may be overtaken by eight later ones that
do; then everything behind it waits with it, until rows that close have left
enough pages. So a small request does not wait for pages that it does not need,
and a large one does not wait forever. If nothing runs, no row will close, so
other sequences may overtake.

Prefill. Each round runs a chunk of one prompt: the prompt with the fewest
tokens left runs; ties go to the first. A prompt that was passed over three
times in succession goes before that, and of several the one that was passed
over most often. So the first token of a short prompt does not wait for a long
prompt, and of k prompts each runs a chunk at least every k + 3 rounds.

Both numbers are our guess; the sources do not say how requests are scheduled.
Everything here is plain Python on the host and touches no device.
"""

import collections
from collections.abc import Callable

from kaiju_jax.decoding import pages
from kaiju_jax.decoding import sequence as sequence_lib


class Schedule:
  """The sequences that wait, those in their prompts, and those that draw.

  Args:
    overtakes: how often a waiting sequence may be overtaken.
    passes: how often in succession a prompt is passed over before it goes
      first.

  Attributes:
    going: the sequences that draw tokens, by their row.
  """

  def __init__(self, overtakes: int = 8, passes: int = 3):
    self._overtakes = overtakes
    self._passes = passes
    self._waiting: collections.deque[sequence_lib.Sequence] = (
      collections.deque()
    )
    self._prefilling: list[sequence_lib.Sequence] = []
    self.going: dict[int, sequence_lib.Sequence] = {}

  @property
  def is_running(self) -> bool:
    """Whether any sequence has a row."""
    return bool(self._prefilling or self.going)

  @property
  def is_prefilling(self) -> bool:
    return bool(self._prefilling)

  def wait(self, sequence: sequence_lib.Sequence) -> None:
    """Adds a sequence that needs a row."""
    self._waiting.append(sequence)

  def enter(self, sequence: sequence_lib.Sequence) -> None:
    """Adds a sequence that has a row, and whose prompt is to be prefilled."""
    self._prefilling.append(sequence)

  def admit(
    self, join: Callable[[sequence_lib.Sequence], None]
  ) -> pages.Full | None:
    """Lets waiting sequences join.

    Args:
      join: gives a sequence a row, or raises `pages.Full`.

    Returns:
      Why the first sequence that still waits did not fit, or None.
    """
    held_up: list[sequence_lib.Sequence] = []
    full = None
    for sequence in list(self._waiting):
      if len(held_up) > self._overtakes:
        break
      if self.is_running and any(
        one.overtaken >= self._overtakes for one in held_up
      ):
        break
      try:
        join(sequence)
      except pages.Full as error:
        full = full or error
        held_up.append(sequence)
        continue
      self._waiting.remove(sequence)
      self.enter(sequence)
      for one in held_up:
        one.overtaken += 1
    return full

  def next_prompt(self) -> sequence_lib.Sequence:
    """Returns the sequence whose chunk runs now; all others are passed over."""
    chosen = max(self._prefilling, key=lambda one: one.passed)
    if chosen.passed < self._passes:
      chosen = min(self._prefilling, key=lambda one: len(one.left_L))
    for one in self._prefilling:
      one.passed += 1
    chosen.passed = 0
    return chosen

  def go(self, sequence: sequence_lib.Sequence) -> None:
    """Notes that a sequence's prompt is in the cache: it draws from here on."""
    self._prefilling.remove(sequence)
    self.going[sequence.row] = sequence

  def remove(self, sequence: sequence_lib.Sequence) -> None:
    """Forgets a sequence, wherever it is."""
    for queue in self._waiting, self._prefilling:
      if sequence in queue:
        queue.remove(sequence)
    if self.going.get(sequence.row) is sequence:
      del self.going[sequence.row]
