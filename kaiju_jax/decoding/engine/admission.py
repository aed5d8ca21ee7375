"""Estimates the wait for a first token, and refuses requests by it.

The first token comes when a row is free and all prompts ahead, and its own,
have run. The estimate counts rounds and chunks: all waiting sequences, whatever
their priority, come first, and running ones draw all their tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kaiju_jax.decoding.engine import schedule
from kaiju_jax.decoding.requests import request as request_lib


class Limits(NamedTuple):
  """Limits at which an engine refuses or ends sequences; None for none."""

  # Most sequences that wait.
  queue: int | None = None
  # Most seconds to expect until a first token.
  wait: float | None = None
  # Seconds after which a sequence is cancelled that no caller reads.
  lease: float | None = None


class Work(NamedTuple):
  """The tokens that a sequence has left to prefill, and may still draw."""

  prompt: int
  tokens: int


class Load(NamedTuple):
  """An engine's work at the moment."""

  waiting: int
  running: int
  # Tokens to prefill.
  prompt: int
  # Seconds until a new sequence's first token, without its own prompt.
  wait: float
  # Texts that prompts can resume.
  points: int


class Costs(NamedTuple):
  """What rounds cost: seconds that are seldom exceeded."""

  size: int
  step: float
  # What a chunk of `size` tokens of a prompt adds.
  chunk: float

  def count_chunks(self, prompt: int) -> int:
    """Returns the number of chunks of a prompt that shares none of them."""
    return -(-prompt // self.size)


def measure(
  waiting: Sequence[Work],
  running: Sequence[Work],
  free: int,
  points: int,
  costs: Costs,
) -> Load:
  """Returns the load of an engine with `free` free rows and some points."""
  count = costs.count_chunks
  rounds = schedule.expected_wait(
    [work.tokens + count(work.prompt) for work in waiting],
    [work.tokens + count(work.prompt) for work in running],
    free,
  )
  prompts = [work.prompt for work in (*waiting, *running)]
  wait = rounds * costs.step + sum(map(count, prompts)) * costs.chunk
  return Load(len(waiting), len(running), sum(prompts), wait, points)


def refuse(limits: Limits, load: Load, costs: Costs, prompt: int) -> None:
  """Refuses a request if too many wait, or its first token would be too late.

  `prompt` counts its tokens that are not in the cache. Raises request.Busy with
  the expected wait. A request that nothing else delays is not refused for its
  own prompt, which would take as long later.
  """
  # Its own prompt runs after all that wait, and one round runs already.
  rounds = costs.count_chunks(prompt) + 1
  wait = load.wait + rounds * (costs.chunk + costs.step)
  if limits.queue is not None and load.waiting >= limits.queue:
    raise request_lib.Busy(
      f'{load.waiting} sequences wait, as many as may: ask again in'
      f' {wait:.1f} s.',
      wait,
    )
  if limits.wait is not None and load.wait and wait > limits.wait:
    raise request_lib.Busy(
      f'the first token would come after {wait:.1f} s, and {limits.wait:g} s'
      ' are allowed: ask again then.',
      wait,
    )
