"""The schedule: chooses which sequences join, park, draw or prefill in a round.

`plan` is arithmetic on descriptions; it touches no device and no sequence.

Order. Higher priorities go first. Each `AGEING` seconds of waiting count as one
more, up to the highest priority that waits, so that no sequence waits forever,
and an owner whose many requests have waited long does not go before all others.
Within a priority, owners share by tokens: a sequence's tag is the virtual time
at which its owner's earlier sequences end, and the lowest tag goes first.
Virtual time counts the tokens that each owner below its share would have got in
equal parts (fair queueing: Demers, Keshav and Shenker 1989; ordered by starts:
Goyal, Vin and Cheng 1996). An owner with many requests delays its own.

Joining. A sequence that does not fit yet may be overtaken by `OVERTAKES` later
ones that do; then all behind it wait with it, until rows that close have left
enough pages. If nothing runs, no row will close, so others may overtake. A
sequence whose prompt another prefills now, or will in this round, waits until
it can resume there.

Parking. If the first in the order finds no row or too few pages, running
sequences of lower priority give up theirs, if it then fits. They are recorded,
wait, and go on later with the same text. A running sequence that would come
before it, because it waited longer, keeps its row, or it would take it back.

Prefill. Each round runs one chunk: of one prompt, or of several short ones side
by side, in the shape with the least padding. The prompt with the fewest tokens
left comes first, after prompts that were passed over three times in succession.
So a short prompt's first token does not wait for a long prompt, and each of k
prompts runs at least every k + 3 rounds.

Pace. A sequence that is ahead of its reader (`pacing.py`) draws no token in a
round that is shorter without it for another: for a prompt, a search, or one
that is not ahead. While a sequence waits for a row none sits out, because the
row would be free later.

Search. Each round runs a step of one search, the one passed over for longest,
beside the rows that draw: their tokens wait for one call more, however many
searches there are.

The sources do not say how requests are scheduled: all of this is our guess.
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import heapq
from typing import NamedTuple

# Seconds of waiting that count as one more priority.
AGEING = 10.0
# An owner within this many tokens of its share has had it.
_EVEN = 0.5
# How often a waiting sequence may be overtaken.
OVERTAKES = 8
# How often in succession a prompt is passed over before it goes first.
PASSES = 3
# What a round costs beside a call's tokens, counted in tokens.
_ROUND = 64


class Waiting(NamedTuple):
  """A sequence that needs a row.

  Attributes:
    came: when it was submitted, in seconds of the engine's clock.
    tag: its place in its owner's share (`Shares`).
    priority: higher goes first.
    deadline: when it must have joined; None for never.
    needs: pages that it would take, by kind; None if not considered this round.
    left: tokens that it would have to prefill.
    overtaken: how many later ones joined before it.
    follows: numbers of sequences that will soon cache more of its prompt.
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
  follows: Sequence[int] = ()
  is_alone: bool = False


class Running(NamedTuple):
  """A sequence that has a row; fields as in `Waiting`, except:

  Attributes:
    left: tokens to prefill before it draws; 0 if it draws.
    passed: rounds in succession in which other prompts, or other searches, ran.
    waited: for how many seconds it has waited, all in all.
    frees: by kind the pages that only it holds; None if it cannot be parked.
    is_guided: whether a search finds its tokens, so that it draws none.
  """

  number: int
  came: float
  left: int = 0
  priority: int = 0
  passed: int = 0
  is_alone: bool = False
  tag: float = 0.0
  waited: float = 0.0
  frees: Mapping[str, int] | None = None
  is_guided: bool = False


class Budget(NamedTuple):
  """The free rows, the pages by kind for new rows, and compiled shapes.

  A shape of a prefill's calls is (rows, tokens of each).
  """

  rows: int
  pages: Mapping[str, int]
  shapes: Sequence[tuple[int, int]]


class Round(NamedTuple):
  """The plan of a round, in order of execution; sequences by their numbers.

  Attributes:
    late: sequences whose deadline has passed.
    park: sequences that give up their rows; those that `join` get one.
    overtaken: sequences that later ones overtake, once for each time.
    search: the sequence whose search runs a step, if any; others `draw` a
      token.
    prefill: sequences whose prompts run, each at most `shape[1]` tokens.
    shape: of that call; (0, 0) for none.
  """

  late: tuple[int, ...]
  park: tuple[int, ...]
  join: tuple[int, ...]
  overtaken: tuple[int, ...]
  draw: tuple[int, ...]
  search: tuple[int, ...]
  prefill: tuple[int, ...]
  shape: tuple[int, int]


def plan(
  waiting: Sequence[Waiting],
  running: Sequence[Running],
  budget: Budget,
  now: float,
  early: Collection[int] = (),
) -> Round:
  """Returns what the next round does; `early` are ahead of their readers."""
  late = [x for x in waiting if x.deadline is not None and x.deadline < now]
  gone = {x.number for x in late}
  queue = sort_waiting([x for x in waiting if x.number not in gone], now)
  join, overtaken = (), ()
  park = _choose_parked(queue, running, budget, now)
  if not park:
    join, overtaken = _joining(queue, budget, [x.number for x in running])
  prompts = [x for x in running if x.left and x.number not in park]
  prompts += [
    Running(x.number, x.came, x.left, x.priority, is_alone=x.is_alone)
    for x in queue
    if x.number in join
  ]
  prefill, shape = batch(prompts, budget.shapes)
  drawing = [x for x in running if not x.left and x.number not in park]
  searching = [x for x in drawing if x.is_guided]
  searching.sort(key=lambda one: -one.passed)
  draw = tuple(x.number for x in drawing if not x.is_guided)
  if early and len(join) == len(queue):
    due = tuple(number for number in draw if number not in early)
    draw = due if due or prefill or searching else draw
  return Round(
    late=tuple(x.number for x in late),
    park=park,
    join=join,
    overtaken=overtaken,
    draw=draw,
    search=tuple(x.number for x in searching[:1]),
    prefill=prefill,
    shape=shape,
  )


def sort_waiting(waiting: Sequence[Waiting], now: float) -> list[Waiting]:
  """Returns waiting sequences in the order in which they should join."""

  highest = max((one.priority for one in waiting), default=0)
  return sorted(waiting, key=lambda one: _place(one, now - one.came, highest))


def batch(
  prompts: Sequence[Running], shapes: Sequence[tuple[int, int]]
) -> tuple[tuple[int, ...], tuple[int, int]]:
  """Returns the prompts of one call, by their numbers, and the call's shape."""
  if not prompts:
    return (), (0, 0)

  def rank(one: Running):
    # Prompts that were passed over too often first, then the shortest.
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
  """Returns for about how many rounds a new sequence waits for a row.

  It comes behind `ahead`, the rounds of each waiting sequence; running ones
  have `left`, and `rows` are free.
  """
  # Rows that are neither free nor running are not counted on.
  ends = [0] * rows + list(left) or [0]
  heapq.heapify(ends)
  for rounds in ahead:
    heapq.heapreplace(ends, ends[0] + rounds)
  return ends[0]


@dataclasses.dataclass
class Shares:
  """The virtual times at which owners' sequences end.

  Virtual time passes as sequences join: by their tokens, divided among the
  owners whose sequences end later. An owner that had its share is forgotten.
  """

  now: float = 0.0
  _ends: dict[bytes, float] = dataclasses.field(default_factory=dict)

  def __len__(self) -> int:
    """Returns how many owners have not had their shares."""
    return len(self._ends)

  def tag(self, owner: bytes, tokens: int) -> float:
    """Returns the tag of an owner's next sequence."""
    tag = max(self.now, self._ends.get(owner, 0.0))
    self._ends[owner] = tag + tokens
    return tag

  def note_joined(self, tag: float, tokens: int) -> None:
    """Notes that a sequence joined; forgets owners that had their shares."""
    ends = sorted(self._ends.values())
    now, left = self.now, float(tokens)
    for place, end in enumerate(ends):
      owners = len(ends) - place
      if left < (end - now) * owners:
        now += left / owners
        break
      left -= (end - now) * owners
      now = end
    self.now = max(now, tag)
    self._forget()

  def note_unserved(self, owner: bytes, tokens: int) -> None:
    """Notes that a sequence ended before it joined."""
    if owner in self._ends:
      self._ends[owner] -= tokens
      self._forget()

  def clear(self) -> None:
    """Forgets all owners, after the last waiting sequence left unserved."""
    self._ends.clear()

  def _forget(self) -> None:
    least = self.now + _EVEN
    self._ends = {x: end for x, end in self._ends.items() if end > least}


def _place(one: Waiting | Running, waited: float, highest: int):
  """Returns the sort key of a sequence in the order; the lowest comes first."""
  aged = one.priority + int(max(waited, 0.0) // AGEING)
  return -min(aged, highest), one.tag, one.number


def _joining(queue: Sequence[Waiting], budget: Budget, running: Sequence[int]):
  """Returns the sequences that join, and those that are overtaken."""
  rows, pages = budget.rows, dict(budget.pages)
  join: list[int] = []
  # By sequence that does not fit, how often it has been overtaken.
  held_up: dict[int, int] = {}
  overtaken: list[int] = []
  for one in queue:
    going = {*running, *join}
    if not rows or one.needs is None or len(held_up) > OVERTAKES:
      break
    if going and max(held_up.values(), default=0) >= OVERTAKES:
      break
    if not going.isdisjoint(one.follows):
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


def _choose_parked(
  queue: Sequence[Waiting],
  running: Sequence[Running],
  budget: Budget,
  now: float,
) -> tuple[int, ...]:
  """Returns running sequences to park so that the first in the order fits."""
  if not queue or queue[0].needs is None:
    return ()
  first, highest = queue[0], max(one.priority for one in queue)
  if any(one.number in first.follows for one in running):
    return ()
  place = _place(first, now - first.came, highest)
  rows, pages = budget.rows, dict(budget.pages)

  def fits():
    return rows and all(pages[x] >= count for x, count in first.needs.items())

  lower = [
    x
    for x in running
    if x.frees is not None
    and x.priority < first.priority
    and not (x.is_alone and x.left)
    and place < _place(x, x.waited, highest)
  ]
  # The lowest priority first; within one, the latest.
  lower.sort(key=lambda one: (one.priority, -one.came, -one.number))
  parked: list[int] = []
  for one in lower:
    if fits():
      break
    parked.append(one.number)
    rows += 1
    pages = {kind: pages[kind] + count for kind, count in one.frees.items()}
  return tuple(parked) if fits() else ()
