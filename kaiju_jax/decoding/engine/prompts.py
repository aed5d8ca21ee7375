"""Runs prompts chunk by chunk; a chunk ends where the recorder makes a point.

After a call that failed, the sequences lose their rows and wait to run again,
and nothing of the call is recorded.
"""

from collections.abc import Callable
from collections.abc import Sequence

import jax

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import inflight
from kaiju_jax.decoding.engine import phases
from kaiju_jax.decoding.engine import searches as searches_lib
from kaiju_jax.decoding.engine import sequence as sequence_lib

_Change = Callable[[sequence_lib.Sequence], None]


class Prompts:
  """The prompts of one engine.

  The search of a guided sequence begins where its prompt ends. `record` makes a
  point of what a sequence's row holds; `requeue` takes the row away.
  """

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    searches: searches_lib.Searches,
    flights: inflight.Flights,
    record: _Change,
    requeue: _Change,
  ):
    self._decoder = decoder
    self._searches = searches
    self._flights = flights
    self._record = record
    self._requeue = requeue

  def run(
    self,
    rounds: compiled.Rounds,
    prompts: Sequence[sequence_lib.Sequence],
    shape: tuple[int, int],
  ) -> None:
    """Runs the next chunks of prompts in one call of (rows, tokens of each)."""
    chunks, judged, size = [], [], shape[1]
    if prompts[0].request.scores_prompt:
      size = min(size, rounds.scored)
    for one in prompts:
      one.passed = 0
      begin = self._decoder.length_of(one.row)
      end = min(begin + size, one.length, *one.stops(begin))
      tokens_L, draws = one.tokens(begin, end), end == one.length and one.draws
      chunks.append(compiled.Chunk(one.row, tokens_L, draws))
      judged.append(inflight.ScoredTokens(one, begin, end - begin))
    try:
      ran = _ran(rounds, chunks, judged, shape)
    except BaseException:
      for one in prompts:
        self._requeue(one)
      raise
    drawing = {}
    for place, (one, chunk) in enumerate(zip(prompts, chunks)):
      if self._decoder.length_of(one.row) == one.length:
        one.begin()
      if chunk.draws:
        drawing[place] = one
    self._flights.add(
      ran.packed, drawing, ran.judged_BLC, dict(enumerate(judged))
    )
    for place, one in enumerate(prompts):
      if self._decoder.length_of(one.row) in one.stops():
        self._record(one)
      if one.phase is phases.Phase.SEARCHING:
        self._begin_search(one, rounds.last_BLD, place)

  def _begin_search(
    self, one: sequence_lib.Sequence, hidden_BLD: jax.Array, place: int
  ) -> None:
    try:
      self._searches.begin(one, hidden_BLD, place)
    except BaseException:
      self._requeue(one)
      raise


def _ran(
  rounds: compiled.Rounds,
  chunks: Sequence[compiled.Chunk],
  judged: Sequence[inflight.ScoredTokens],
  shape: tuple[int, int],
) -> compiled.Prefilled:
  """Runs chunks, and scores the successors of one whose prompt is scored."""
  one, begin, count = judged[0]
  if not one.request.scores_prompt:
    return rounds.prefill(chunks, shape)
  (chunk,) = chunks
  ran = rounds.score(chunk, one.tokens(begin + 1, begin + 1 + count))
  one.score(begin, count, ran.scores)
  return ran
