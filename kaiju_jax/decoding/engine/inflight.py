"""Device calls in flight: dispatched, and not read by the host yet.

    step      draws the next token of each of some sequences
    prefill   appends the next chunks of some prompts, and draws where one ends
    read      what the oldest round's calls gave, one sequence after another

A prompt's chunk ends where the recorder makes a point.
"""

import collections
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.requests import alternatives as alternatives_lib


class _Chunk(NamedTuple):
  """The `count` tokens of a prompt from position `begin` on."""

  one: sequence_lib.Sequence
  begin: int
  count: int


class _Call(NamedTuple):
  """A call in flight."""

  # Drawn tokens, for `unpack`; and whose they are, by their index in it.
  packed: jax.Array
  drawing: dict[int, sequence_lib.Sequence]
  # The head's scores of a prefill's `chunks`; None without one, and of a step.
  judged_BLC: jax.Array | None = None
  chunks: Sequence[_Chunk] = ()


class InFlight:
  """The unread calls of one engine, by round.

  `classes` is the head's C, 0 without one; `alternatives` come with each token.
  """

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    rounds: compiled.Rounds,
    classes: int = 0,
    alternatives: int = 0,
  ):
    self._decoder = decoder
    self._rounds = rounds
    self._classes = classes
    self._alternatives = alternatives
    self._unread: collections.deque[list[_Call]] = collections.deque()
    # What the latest call gave and nobody has taken yet.
    self._outputs: collections.deque = collections.deque()

  def __len__(self) -> int:
    """Returns how many rounds are not read."""
    return len(self._unread)

  def open_round(self) -> None:
    """Starts a round; the calls that follow are its calls."""
    self._unread.append([])

  def step(self, sequences: Sequence[sequence_lib.Sequence]) -> None:
    """Dispatches a step of sequences that draw."""
    packed = self._rounds.step([one.row for one in sequences])
    self._add(_Call(packed, dict(enumerate(sequences))))

  def prefill(
    self, prompts: Sequence[sequence_lib.Sequence], shape: tuple[int, int]
  ) -> None:
    """Dispatches the next chunks of prompts in a call of (rows, tokens each).

    A prompt that is to be scored comes alone.
    """
    size = shape[1]
    if prompts[0].request.scores_prompt:
      size = min(size, self._rounds.scored)
    chunks, appends = [], []
    for one in prompts:
      begin = self._decoder.length_of(one.row)
      stops = [x for x in one.record_lengths if x > begin]
      end = min(begin + size, one.length, *stops)
      draws = end == one.length and one.draws
      tokens_L = one.tokens_L[begin:end]
      chunks.append(_Chunk(one, begin, end - begin))
      appends.append(compiled.Chunk(one.row, tokens_L, draws))
    if prompts[0].request.scores_prompt:
      ran = self._score(chunks[0], appends[0])
    else:
      ran = self._rounds.prefill(appends, shape)
    drawing = {
      place: one
      for place, (one, append) in enumerate(zip(prompts, appends))
      if append.draws
    }
    self._add(_Call(ran.packed, drawing, ran.judged_BLC, chunks))

  def read(
    self,
  ) -> tuple[sequence_lib.Sequence, sequence_lib.Output] | None:
    """Returns a sequence and what it got in the oldest round; waits for it.

    None ends the round.
    """
    calls = self._unread[0]
    while calls and not self._outputs:
      self._outputs.extend(self._read(calls[0]))
      del calls[0]
    if self._outputs:
      return self._outputs.popleft()
    self._unread.popleft()
    return None

  def _add(self, call: _Call) -> None:
    for one in call.drawing.values():
      one.flying += 1
    self._unread[-1].append(call)

  def _score(self, chunk: _Chunk, append: compiled.Chunk) -> compiled.Prefilled:
    """Appends a chunk, and scores the successors of its tokens."""
    one, begin, count = chunk
    next_L = one.tokens_L[begin + 1 : begin + 1 + count]
    ran = self._rounds.score(append, next_L)
    one.update(sequence_lib.Scored(begin, count, ran.scores))
    return ran

  def _read(
    self, call: _Call
  ) -> list[tuple[sequence_lib.Sequence, sequence_lib.Output]]:
    """Waits for a call; returns its outputs, first what the head judged."""
    packed, drawing, judged_BLC, chunks = call
    # Without this wait, chunks would pile up before a short prompt.
    jax.block_until_ready(packed)
    outputs = []
    if judged_BLC is not None:
      judged_BLC = np.asarray(judged_BLC)
      for place, (one, begin, count) in enumerate(chunks):
        judged = sequence_lib.Judged(begin, judged_BLC[place, :count])
        outputs.append((one, judged))
    if not drawing:
      return outputs
    # As `rounds._draw` has it: tokens, log-probabilities, alternatives, scores.
    packed_NB = np.asarray(packed)
    float_NB = packed_NB.view(np.float32)
    K = self._alternatives
    likeliest = alternatives_lib.Alternatives(
      packed_NB[2 : 2 + K].T, float_NB[2 + K : 2 + 2 * K].T
    )
    has_scores = self._classes and judged_BLC is None
    score_BC = float_NB[-self._classes :].T if has_scores else None
    for place, one in drawing.items():
      drawn = packed_NB[0, place].item(), float_NB[1, place].item()
      alternatives = ()
      if count := one.request.alternatives:
        alternatives = likeliest.list(place, count, *drawn)
      score_C = score_BC[place] if has_scores else None
      outputs.append((one, sequence_lib.Drawn(*drawn, score_C, alternatives)))
    return outputs
