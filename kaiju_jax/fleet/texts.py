"""Puts tokens to a trace of arrays (`people.py`), as the caches take them."""

from collections.abc import Iterator

from kaiju_jax.fleet import people
from kaiju_jax.fleet import traffic


def requests(trace: people.PeopleTrace) -> Iterator[traffic.Request]:
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
      people.KINDS[trace.kind[at]],
      tuple(reversed(text)),
      answer(at),
      int(trace.person[at]),
    )
