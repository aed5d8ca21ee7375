"""Draws traffic as people make it: arrays of requests, without a model.

    person   arrives, visits, and never returns after 35 % of the visits
    visit    some 30 requests, with log-normal pauses of minutes
    chat     with a character; a person has several and changes between them
    request  a turn, a swipe (another answer), an edit (the last message ends
             otherwise) or a fork (an earlier turn again, in a chat of its own)

Visits begin where a uniform *day clock* says: people arrive on it at a constant
rate, and stay away between visits for log-normal days. It runs fastest at the
peak of the day, so that visits per second follow the day exactly:

    clock(t) = t − (peak − 1) · sin(2π (t − peak hour) / day) · day / 2π
    visits per second at t = mean rate · (1 + (peak − 1) cos(2π (…) / day))

Popularity is Zipf's law at all times and drifts: characters of all ranks are
replaced by new ones. The trace begins in the middle of life, after a warm-up
that it holds as well. Source 003 gives the range of prefixes, the peak of twice
the mean and its hours; all else is our guess, and is a field for other traces.
"""

from collections.abc import Iterator
import dataclasses
from typing import NamedTuple

import numpy as np

from kaiju_jax.fleet import laws
from kaiju_jax.fleet import traffic

KINDS = 'turn', 'swipe', 'edit', 'fork'
TURN, SWIPE, EDIT, FORK = range(4)
DAY = 86_400.0


@dataclasses.dataclass(frozen=True)
class People:
  """The parameters of a trace."""

  seed: int = 0
  requests: int = 10_000  # Number of requests from second 0 on.
  live: int = 40  # Mean number of people between their first and last request.
  # Fraction of the requests of a chat, but for its first and for forks, that
  # ask for another answer.
  swipes: float = 0.15
  # The same for replacing the second half of the last message.
  edits: float = 0.01
  cancels: float = 0.05  # Fraction of all answers that are cut off, anywhere.
  visit: float = 30.0  # Mean requests of a visit.
  never: float = 0.35  # Fraction of the visits that are a person's last.
  # Median seconds between two requests of a visit, and the standard deviation
  # of their logarithm.
  think: tuple[float, float] = (60.0, 1.0)
  # The same for the days between two visits, on the day clock.
  away: tuple[float, float] = (1.0, 1.0)
  # Fraction of a person's requests that change to another chat.
  switch: float = 0.04
  # Fraction of these changes that begin a chat; the others draw one of the
  # person's, which may be the same.
  new: float = 0.5
  forks: float = 0.01  # Fraction of a person's requests that fork.
  back: float = 3.0  # Mean turns that a fork goes back.
  # Visits per second at the peak of the day over the mean, 1 to 2.
  peak: float = 2.0
  hour: float = 18.0  # The hour of the peak.
  characters: int = 300  # Number of characters at a time.
  zipf: float = 1.0  # Exponent of the law by which characters are drawn.
  drift: float = 0.05  # Fraction of the characters that are replaced per day.
  # Fewest and most tokens of a prefix; log-uniform between them.
  prefix: tuple[int, int] = (4_096, 16_384)
  message: int = 25  # Median tokens of a message.
  answer: int = 120  # Median tokens of an answer.
  longest: int = 512  # Most tokens of a message or an answer.
  context: int = 32_768  # Most tokens of a prompt and its answer together.
  warm_up: float = 21.0  # Days before second 0 in which people arrive already.

  def __post_init__(self) -> None:
    """Refuses parameters that make no trace.

    Raises:
      ValueError: names the field, its value and what would be right.
    """
    traffic.check(self, ('swipes', 'edits', 'cancels', 'switch', 'forks'))
    for one, other in (('swipes', 'edits'), ('switch', 'forks')):
      if getattr(self, one) + getattr(self, other) >= 1:
        raise ValueError(
          f'{one}={getattr(self, one)}, {other}={getattr(self, other)}: must'
          ' sum to less than 1.'
        )
    if not 0 < self.never <= 1:
      raise ValueError(f'never={self.never}: must be above 0 and at most 1.')
    if not 1 <= self.peak <= 2:
      raise ValueError(f'peak={self.peak}: must be 1 to 2 times the mean.')
    for name in ('visit', 'back'):
      if getattr(self, name) < 1:
        raise ValueError(
          f'{name}={getattr(self, name)}: must be at least 1, on average.'
        )

  @property
  def lifetime(self) -> float:
    """Returns the mean seconds from a person's first request to the last."""
    visits = 1 / self.never
    seconds = (self.visit - 1) * laws.lognormal_mean(self.think)
    return visits * seconds + (visits - 1) * DAY * laws.lognormal_mean(
      self.away
    )

  @property
  def rate(self) -> float:
    """Returns the mean requests per second."""
    return self.live / self.lifetime * self.visit / self.never

  def clock(self, seconds: np.ndarray) -> np.ndarray:
    """Returns the day clock, in seconds."""
    turn = 2 * np.pi / DAY
    phase = turn * (np.asarray(seconds) - 3600 * self.hour)
    return seconds + (self.peak - 1) * np.sin(phase) / turn


class PeopleTrace(NamedTuple):
  """Requests in the order in which they come; one row of each array.

  The text of a request is its character's prefix, its history and its message.
  The history's last turn is request `previous` with its answer; the turn before
  that is the one that `previous` follows, and so on, `turns` of them.
  """

  people: People
  # The first request at or after second 0; those before are the warm-up.
  begin: int
  seconds: np.ndarray  # float64 [n], when the request comes.
  person: np.ndarray  # int32 [n].
  visit: np.ndarray  # int32 [n], 0 for a person's first.
  chat: np.ndarray  # int32 [n].
  character: np.ndarray  # int32 [n].
  kind: np.ndarray  # int8 [n], an index of KINDS.
  is_cancelled: np.ndarray  # bool [n], whether its answer is cut off.
  previous: np.ndarray  # int32 [n], −1 where the history is empty.
  turns: np.ndarray  # int32 [n], turns of its history.
  # opening, closing: int32 [n], the requests whose first and second half of a
  # message it has: its own, or an earlier one's in swipes and edits.
  opening: np.ndarray
  closing: np.ndarray
  halves: np.ndarray  # int32 [n, 2], tokens of the two halves that it drew.
  answer: np.ndarray  # int32 [n], tokens of its answer.
  history: np.ndarray  # int32 [n], tokens of its history.
  prefix: np.ndarray  # int32 [characters], tokens of each one's prefix.

  @property
  def prompt(self) -> np.ndarray:
    """Returns the tokens of each prompt, int32 [n]."""
    message = self.halves[self.opening, 0] + self.halves[self.closing, 1]
    return self.prefix[self.character] + self.history + message


def draw(people: People) -> PeopleTrace:
  """Draws a trace.

  Raises:
    ValueError: fewer requests came than were asked for, by chance.
  """
  end = 1.5 * people.requests / people.rate + DAY
  seconds, person, visit = _visits(people, end)
  chat, kind, origin, opens = _chats(people, person)
  character, prefix = _characters(people, end, seconds[opens])
  for fork in np.flatnonzero(origin >= 0):
    character[fork] = character[origin[fork]]
  halves, answer, is_cancelled = _sizes(people, seconds.size)
  room = people.context - prefix[character] - 2 * people.longest
  back = laws.geometric(_rng(people, 5), people.back, seconds.size)
  previous, turns, opening, closing, history = _texts(
    chat, kind, origin, room, halves, answer, back
  )
  # Until here the requests of a person stand together; now they are mixed.
  order = np.argsort(seconds, kind='stable')
  place = np.full(order.size + 1, -1, np.int32)
  place[order] = np.arange(order.size)
  begin = int(np.searchsorted(seconds[order], 0.0))
  order = order[: begin + people.requests]
  if order.size < begin + people.requests:
    raise ValueError(
      f'requests={people.requests}: by chance only {order.size - begin} came;'
      ' another seed or more live people would do.'
    )
  return PeopleTrace(
    people,
    begin,
    seconds=seconds[order],
    person=person[order],
    visit=visit[order],
    chat=chat[order],
    character=character[chat[order]],
    kind=kind[order],
    is_cancelled=is_cancelled[order],
    previous=place[previous[order]],
    turns=turns[order],
    opening=place[opening[order]],
    closing=place[closing[order]],
    halves=halves[order],
    answer=answer[order],
    history=history[order],
    prefix=prefix,
  )


def draw_texts(trace: PeopleTrace) -> Iterator[traffic.Request]:
  """Yields the requests from second 0 on, with their tokens."""
  seed, pieces = trace.people.seed, {}

  def piece(number: int, size: int) -> traffic.Piece:
    if number not in pieces:
      pieces[number] = traffic.draw_piece(seed, number, size)
    return pieces[number]

  def message(at: int) -> tuple[traffic.Piece, ...]:
    opening, closing = int(trace.opening[at]), int(trace.closing[at])
    return (
      piece(3 * opening, trace.halves[opening, 0]),
      piece(3 * closing + 1, trace.halves[closing, 1]),
    )

  def answer(at: int) -> traffic.Piece:
    return piece(3 * at + 2, trace.answer[at])

  prefixes = 3 * len(trace.seconds)
  for at in range(trace.begin, len(trace.seconds)):
    character, before = int(trace.character[at]), int(trace.previous[at])
    text = [*reversed(message(at))]
    for _ in range(trace.turns[at]):
      text += [answer(before), *reversed(message(before))]
      before = int(trace.previous[before])
    text.append(piece(prefixes + character, trace.prefix[character]))
    yield traffic.Request(
      float(trace.seconds[at]),
      character,
      int(trace.chat[at]),
      KINDS[trace.kind[at]],
      tuple(reversed(text)),
      answer(at),
      int(trace.person[at]),
    )


def _visits(people: People, end: float) -> tuple[np.ndarray, ...]:
  """Returns seconds, person and visit of all requests, person by person."""
  rng, begin = _rng(people, 0), -people.warm_up * DAY
  table = np.arange(begin, end + DAY, 60.0)
  clock = people.clock(table)
  rate = people.live / people.lifetime
  now = laws.poisson(rng, rate, clock[0], float(people.clock(end)))
  person, found = np.arange(now.size, dtype=np.int32), []
  while person.size:
    start = np.interp(now, clock, table)
    person, start = person[start < end], start[start < end]
    size = laws.geometric(rng, people.visit, person.size)
    last = np.cumsum(size)
    spent = np.cumsum(laws.lognormal(rng, people.think, int(size.sum())))
    spent -= np.repeat(spent[last - size], size)
    visit = np.full(spent.size, len(found), np.int32)
    found.append(
      (np.repeat(start, size) + spent, np.repeat(person, size), visit)
    )
    stays = rng.random(person.size) >= people.never
    away = DAY * laws.lognormal(rng, people.away, person.size)
    now = (people.clock(start + spent[last - 1]) + away)[stays]
    person = person[stays]
  seconds, person, visit = (np.concatenate(part) for part in zip(*found))
  order = np.lexsort((seconds, person))
  return seconds[order], person[order], visit[order]


def _chats(people: People, person: np.ndarray):
  """Draws what each request goes on from, person by person.

  Returns:
    The chat and the kind of each request; for each chat the one that it forked
    from, or −1; for each chat its first request.
  """
  rng, size = _rng(people, 1), person.size
  is_first = np.ones(size, bool)
  is_first[1:] = person[1:] != person[:-1]
  move, choice, kind_drawn = rng.random((3, size))
  is_fork = (move < people.forks) & ~is_first
  is_switch = (move < people.forks + people.switch) & ~is_fork & ~is_first
  is_new = is_first | (is_switch & (choice < people.new))
  opens = is_new | is_fork
  # The chats of a person have successive numbers.
  count = np.cumsum(opens)
  low = np.maximum.accumulate(np.where(is_first, count - 1, 0))
  old = (choice - people.new) / max(1 - people.new, 1e-9)
  chosen = low + (old * (count - low)).astype(np.int64)
  chat = np.where(opens, count - 1, np.clip(chosen, low, count - 1))
  changed = np.where(opens | is_switch, np.arange(size), 0)
  chat = chat[np.maximum.accumulate(changed)].astype(np.int32)
  kind = np.full(size, TURN, np.int8)
  kind[kind_drawn < people.swipes + people.edits] = EDIT
  kind[kind_drawn < people.swipes] = SWIPE
  kind[opens] = TURN
  kind[is_fork] = FORK
  opens, before = np.flatnonzero(opens), np.roll(chat, 1)
  origin = np.where(is_fork[opens], before[opens], -1)
  return chat, kind, origin, opens


def _characters(people: People, end: float, seconds: np.ndarray):
  """Draws characters for chats that begin at `seconds`.

  Returns:
    Their characters, and the tokens of every character's prefix.
  """
  rng, begin = _rng(people, 2), -people.warm_up * DAY
  count = people.characters
  rate = count * people.drift / DAY
  replaced = laws.poisson(rng, rate, begin, end)
  rank = (rng.random(replaced.size) * count).astype(np.int64)
  # A rank's characters have successive numbers, in the order in which they
  # come; so the k-th replacement by (rank, time) brings number rank + k + 1.
  span = end - begin + 1
  keys = np.sort(rank * span + (replaced - begin))
  weight = np.arange(1, count + 1, dtype=float) ** -people.zipf
  ends = np.cumsum(weight / weight.sum())
  drawn = np.searchsorted(ends, rng.random(seconds.size), side='right')
  drawn = np.minimum(drawn, count - 1)
  numbers = drawn + np.searchsorted(keys, drawn * span + (seconds - begin))
  low, high = np.log(people.prefix)
  sizes = np.exp(low + (high - low) * rng.random(count + replaced.size))
  return numbers.astype(np.int32), np.maximum(1, sizes).astype(np.int32)


def _sizes(people: People, count: int):
  """Returns tokens of messages' halves [n, 2] and answers, and cancels."""
  rng = _rng(people, 3)

  def tokens(median: int) -> np.ndarray:
    size = laws.lognormal(rng, (median, 0.7), count)
    return np.clip(size, 1, people.longest)

  halves = np.stack([tokens(people.message) / 2 for _ in range(2)], 1)
  answer, part = tokens(people.answer), rng.random(count)
  is_cancelled = rng.random(count) < people.cancels
  answer = np.where(is_cancelled, np.ceil(part * answer), answer)
  return (
    np.maximum(1, halves).astype(np.int32),
    np.maximum(1, answer).astype(np.int32),
    is_cancelled,
  )


def _texts(chat, kind, origin, room, halves, answer, back):
  """Returns each request's previous, turns, opening, closing and history.

  A history that outgrows its chat's `room` drops its oldest turns until half
  of it is left. A fork of a chat goes `back` so many turns, or all.
  """
  previous, turns, opening, closing, history = [], [], [], [], []
  latest, whole = [-1] * len(origin), []
  columns = (column.tolist() for column in (chat, kind, answer, back))
  room, origin, halves = room.tolist(), origin.tolist(), halves.tolist()
  for i, (place, what, size, far) in enumerate(zip(*columns)):
    last = latest[place]
    if what == FORK:
      last = latest[origin[place]]
      while far > 1 and turns[last]:
        last, far = previous[last], far - 1
    before, count, tokens = last, 0, 0
    if last >= 0:
      if what == TURN:
        count, tokens = turns[last] + 1, history[last] + whole[last]
        if tokens > room[place]:
          count, tokens = _newest(
            last, count, room[place] // 2, previous, whole
          )
      else:
        before, count, tokens = previous[last], turns[last], history[last]
    is_own = what in (TURN, FORK)
    first = i if is_own else opening[last]
    second = closing[last] if what == SWIPE else i
    previous.append(before)
    turns.append(count)
    opening.append(first)
    closing.append(second)
    history.append(tokens)
    whole.append(halves[first][0] + halves[second][1] + size)
    latest[place] = i
  found = previous, turns, opening, closing, history
  return tuple(np.array(column, np.int32) for column in found)


def _newest(last: int, count: int, most: int, previous: list, whole: list):
  """Returns how many of the newest turns have `most` tokens, and theirs."""
  kept = tokens = 0
  while kept < count and tokens + whole[last] <= most:
    kept, tokens, last = kept + 1, tokens + whole[last], previous[last]
  return kept, tokens


def _rng(people: People, part: int) -> np.random.Generator:
  """Returns a generator that draws uniform numbers alone, the stablest."""
  return np.random.default_rng((people.seed, 3, part))
