"""Who joins next, who is parked, and whose prompt is prefilled next.

All of this is arithmetic on what is known of sequences: `plan` returns what the
next round does, and nothing here touches a device or a sequence.

Order. Higher priorities go first; each `AGEING` seconds of waiting count as one
more, so that nobody waits forever. Within a priority, owners share by tokens:
a sequence's tag is where its owner's sequences before it end in a virtual time
that counts tokens (start-time fair queueing, Goyal, Vin and Cheng 1996), and
the lowest tag goes first. An owner with many requests delays its own.

Joining. One that does not fit yet may be overtaken by `OVERTAKES` later ones
that do; then everything behind it waits with it, until rows that close have
left enough pages. So a small request does not wait for pages that it does not
need, and a large one does not wait forever. If nothing runs, no row will close,
so others may overtake. One whose prompt is being prefilled by another right now
waits until it can resume there.

Parking. Where the first in the order finds no row, a running sequence of lower
priority gives up its own: it is recorded, waits, and goes on later with the
same text.

Prefill. Each round runs one chunk: of one prompt, or of several short ones
beside each other, in the shape that wastes least on padding. The prompt with
the fewest tokens left comes first; ties go to the first. A prompt that was
passed over three times in succession goes before that, and of several the one
that was passed over most often. So the first token of a short prompt does not
wait for a long prompt, and of k prompts each runs at least every k + 3 rounds.

The sources do not say how requests are scheduled: all of this is our guess.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import heapq
from typing import NamedTuple

# Seconds of waiting that count as one more priority.
AGEING = 10.0
# How often a waiting sequence may be overtaken.
OVERTAKES = 8
# How often in succession a prompt is passed over before it goes first.
PASSES = 3
# What a round costs beside a call's tokens, counted in tokens.
_ROUND = 64


class Waiting(NamedTuple):
  """A sequence that needs a row.

  Attributes:
    number: of the sequence.
    came: when it was submitted, in seconds of the engine's clock.
    tag: where it stands in its owner's share (`Shares`).
    priority: higher goes first.
    deadline: when it must have joined; None for no matter when.
    needs: pages that it would take, by kind; None where it is not considered
      in this round.
    left: tokens that it would have to prefill.
    overtaken: how many later ones joined before it.
    is_following: whether what runs will soon have more of its prompt.
    is_alone: whether its prompt shares a call with no other.
  """

  number: int
  came: float
  tag: float
  priority: int = 0
  deadline: float | None = None
  needs: Mapping[str, int] | None = None
  left: int = 0
  overtaken: int = 0
  is_following: bool = False
  is_alone: bool = False


class Running(NamedTuple):
  """A sequence that has a row.

  Attributes:
    number: of the sequence.
    came: when it was submitted.
    left: tokens to prefill before it draws; 0 where it draws.
    priority: see `Waiting`.
    passed: rounds in succession in which other prompts ran.
    is_alone: whether its prompt shares a call with no other.
  """

  number: int
  came: float
  left: int = 0
  priority: int = 0
  passed: int = 0
  is_alone: bool = False


class Budget(NamedTuple):
  """What a round may use.

  Attributes:
    rows: that are free.
    pages: by kind, that new rows may take.
    shapes: of a prefill's calls, (rows, tokens of each), compiled ones.
  """

  rows: int
  pages: Mapping[str, int]
  shapes: Sequence[tuple[int, int]]


class Round(NamedTuple):
  """What a round does, in this order; sequences by their numbers.

  Attributes:
    late: whose deadline has passed.
    park: that give up their rows.
    join: that get one.
    overtaken: those before which later ones join, once for each.
    draw: that draw a token.
    prefill: whose prompts run, each at most `shape[1]` tokens.
    shape: of that call; (0, 0) for none.
  """

  late: tuple[int, ...]
  park: tuple[int, ...]
  join: tuple[int, ...]
  overtaken: tuple[int, ...]
  draw: tuple[int, ...]
  prefill: tuple[int, ...]
  shape: tuple[int, int]


def plan(
  waiting: Sequence[Waiting],
  running: Sequence[Running],
  budget: Budget,
  now: float,
) -> Round:
  """Returns what the next round does."""
  late = [x for x in waiting if x.deadline is not None and x.deadline < now]
  queue = ordered([x for x in waiting if x not in late], now)
  join, overtaken = _joining(queue, budget, is_anyone=bool(running))
  park = ()
  if queue and not join and _is_stuck(queue[0], budget):
    park = _parked(queue[0], running)
  prompts = [x for x in running if x.left and x.number not in park]
  prompts += [
    Running(x.number, x.came, x.left, x.priority, is_alone=x.is_alone)
    for x in queue
    if x.number in join
  ]
  prefill, shape = batch(prompts, budget.shapes)
  return Round(
    late=tuple(x.number for x in late),
    park=park,
    join=join,
    overtaken=overtaken,
    draw=tuple(
      x.number for x in running if not x.left and x.number not in park
    ),
    prefill=prefill,
    shape=shape,
  )


def ordered(waiting: Sequence[Waiting], now: float) -> list[Waiting]:
  """Returns who waits in the order in which they should join."""

  def key(one: Waiting):
    aged = one.priority + int(max(now - one.came, 0) // AGEING)
    return -aged, one.tag, one.number

  return sorted(waiting, key=key)


def batch(
  prompts: Sequence[Running], shapes: Sequence[tuple[int, int]]
) -> tuple[tuple[int, ...], tuple[int, int]]:
  """Returns whose prompts run in one call, and the call's shape."""
  if not prompts:
    return (), (0, 0)

  def rank(one: Running):
    # Those that were passed over too often first, then the shortest.
    is_due = one.passed >= PASSES
    return (0, -one.passed) if is_due else (1, one.left)

  first, *others = sorted(prompts, key=rank)
  if first.is_alone:
    others = []
  queue = [first, *(x for x in others if not x.is_alone)]

  def worth(shape):
    rows, size = shape
    tokens = sum(min(one.left, size) for one in queue[:rows])
    return tokens / (rows * size + _ROUND), -rows * size

  shape = max(shapes, key=worth)
  return tuple(one.number for one in queue[: shape[0]]), shape


def expected_wait(ahead: Sequence[int], left: Sequence[int], rows: int) -> int:
  """Returns for how many rounds a new sequence will wait for a row, at most.

  Args:
    ahead: rounds that each sequence before it in the queue will take.
    left: rounds that each running sequence will take yet.
    rows: how many are free.
  """
  ends = [0] * rows + list(left)
  heapq.heapify(ends)
  for rounds in ahead:
    heapq.heapreplace(ends, ends[0] + rounds)
  return ends[0]


@dataclasses.dataclass
class Shares:
  """Where each owner's sequences end in a time that counts tokens.

  Attributes:
    now: the tag of the latest sequence that joined.
  """

  now: float = 0.0
  _ends: dict[bytes, float] = dataclasses.field(default_factory=dict)

  def tag(self, owner: bytes, tokens: int) -> float:
    """Returns the tag of an owner's next sequence."""
    tag = max(self.now, self._ends.get(owner, 0.0))
    self._ends[owner] = tag + tokens
    return tag

  def joined(self, tag: float) -> None:
    """Notes that a sequence joined; forgets owners that are even."""
    self.now = max(self.now, tag)
    self._ends = {x: end for x, end in self._ends.items() if end > self.now}


def _joining(queue: Sequence[Waiting], budget: Budget, is_anyone: bool):
  """Returns who joins, and who is overtaken."""
  rows, pages = budget.rows, dict(budget.pages)
  join: list[int] = []
  # How often each that does not fit has been overtaken.
  held_up: dict[int, int] = {}
  overtaken: list[int] = []
  for one in queue:
    is_running = is_anyone or join
    if not rows or one.needs is None or len(held_up) > OVERTAKES:
      break
    if is_running and max(held_up.values(), default=0) >= OVERTAKES:
      break
    if one.is_following and is_running:
      continue
    if any(count > pages[kind] for kind, count in one.needs.items()):
      held_up[one.number] = one.overtaken
      continue
    join.append(one.number)
    rows -= 1
    for kind, count in one.needs.items():
      pages[kind] -= count
    overtaken += held_up
    held_up = {number: times + 1 for number, times in held_up.items()}
  return tuple(join), tuple(overtaken)


def _is_stuck(first: Waiting, budget: Budget) -> bool:
  """Returns whether the first in the order lacks a row, or pages."""
  needs = first.needs or {}
  return not budget.rows or any(
    count > budget.pages[kind] for kind, count in needs.items()
  )


def _parked(first: Waiting, running: Sequence[Running]) -> tuple[int, ...]:
  """Returns who gives a row to the first in the order, if anybody."""
  lower = [
    x
    for x in running
    if x.priority < first.priority and not (x.is_alone and x.left)
  ]
  if not lower:
    return ()
  # The lowest priority, and of these the latest.
  parked = min(lower, key=lambda one: (one.priority, -one.came, -one.number))
  return (parked.number,)
