"""Runs the beam searches of guided requests, one step of one search per round.

    score = Σ log p(token | text before it)  +  the head's score of the text

A guided sequence joins as others do, with slots for its beams beyond those of
its text, and its prompt runs in the same calls. Then it draws nothing: in a
round, one search runs the candidates of its next step beside the step of the
sequences that draw. These wait for one call more, however many searches there
are.

The result is given out at once, each token with its log-probability and its
scores, known since it ran as a candidate. If a stop string cuts the result, the
rest is dropped; otherwise the row becomes text again, and a point as other
answers do.

A search's slots hold more than a text, so that it is not parked. A search that
is cancelled or drained gives out nothing. The sources name classifier-guided
beam search and say no more: all of this is our guess.
"""

from collections.abc import Iterator
import contextlib
import functools
import math
import numbers
from typing import Any

import jax
import numpy as np

from kaiju_jax.decoding.beam import calls as beam_calls
from kaiju_jax.decoding.beam import search as beam
from kaiju_jax.decoding.beam import slots as beam_slots
from kaiju_jax.decoding.beam import step as beam_step
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import judge as judge_lib
from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.pages import pages
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.model import token_head


class Searches:
  """The searches of one engine, which share what is compiled.

  A step has at most `candidates`; with 0 there are no searches at all. Where
  `is_recorded`, rows become text again, so that points can be made. Raises
  ValueError: candidates below 0, or a decoder that cannot search.
  """

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    candidates: int = 0,
    judge: judge_lib.Judge | None = None,
    is_recorded: bool = True,
  ):
    if candidates < 0:
      raise ValueError(f'candidates={candidates}: must be at least 0.')
    self._decoder = decoder
    self._is_recorded = is_recorded
    self._names = () if judge is None else judge.names
    self._head = None if judge is None else judge.params
    self._calls: beam_calls.Calls | None = None
    if candidates:
      judged = None if judge is None else functools.partial(_judge, judge)
      self._calls = beam_calls.Calls(decoder, candidates, judged)

  def check(self, request: request_lib.Request, name: str) -> None:
    """Refuses a request whose search cannot run: TypeError, ValueError."""
    guide, name = request.guided, f'{name}.guided'
    if guide is None:
      return
    for field in ('width', 'candidates'):
      if (value := getattr(guide, field)) is not None or field == 'width':
        request_lib.check_integer(f'{name}.{field}', value)
    try:
      _search_of(request)
    except ValueError as error:
      raise ValueError(f'{name}: {error}') from error
    if self._calls is None:
      raise ValueError(
        f'{name}={guide!r}: the engine runs no searches; make it with'
        f' candidates={guide.queries} or more, over a decoder with'
        f' extra={guide.extra(request.max_tokens)} or more.'
      )
    if guide.queries > self._calls.size:
      raise ValueError(
        f'{name}: a step of {guide.queries} candidates; the engine runs'
        f' {self._calls.size} at most.'
      )
    extra = guide.extra(request.max_tokens)
    if extra > self._decoder.extra:
      raise ValueError(
        f'{name}: width={guide.width}, {guide.queries} candidates and'
        f' max_tokens={request.max_tokens} take {extra} slots beyond the text,'
        f' and the rows of the decoder have {self._decoder.extra}: open it with'
        f' extra={extra} or more.'
      )
    for dimension, weight in guide.weights.items():
      if dimension not in self._names:
        raise ValueError(
          f'{name}.weights names {dimension!r}: the head of the engine has the'
          f' dimensions {list(self._names)}.'
        )
      field = f'{name}.weights[{dimension!r}]'
      sampling.check_type(field, weight, numbers.Real, 'a number')
      if not math.isfinite(weight):
        raise ValueError(f'{field}={weight!r}: must be finite.')

  def begin(
    self, one: sequence_lib.Sequence, hidden_BLD: jax.Array, place: int
  ) -> None:
    """Starts the search behind a prompt, whose last token is entry `place`."""
    weight_C = np.array(
      [one.request.guided.weights.get(name, 0.0) for name in self._names],
      np.float32,
    )
    one.search = beam.BeamSearch(
      self._decoder,
      _search_of(one.request),
      calls=self._calls,
      arguments=(self._head, weight_C) if self._calls.is_judged else (),
      # The head adds at most 0.
      is_bounded=True,
      keeps_pages=True,
    )
    one.search.begin(one.row, hidden_BLD, place)

  def finish_step(self, one: sequence_lib.Sequence) -> str | None:
    """Reads a search's last step, and gives out the result if it is done.

    Returns why the sequence ends, None where it goes on.
    """
    with _errors_of(one):
      one.search.finish_step()
    if one.error is not None:
      return 'error'
    if not one.search.is_done:
      return None
    (best,) = one.search.finish()
    reason = one.update(best)
    is_whole = one.length == one.prompt + len(best.tokens)
    if self._is_recorded and is_whole:
      one.search.adopt(best)
      one.search = None
    return reason

  def dispatch(self, one: sequence_lib.Sequence) -> str | None:
    """Dispatches a search's next step; returns why the sequence ends, if so."""
    with _errors_of(one):
      one.search.dispatch()
    return None if one.error is None else 'error'

  def warm(self, rounds: compiled.Rounds) -> None:
    """Compiles what searches run, in a free row; pages.Full without one."""
    if self._calls is None:
      return
    decoder, arguments = self._decoder, ()
    if self._calls.is_judged:
      arguments = self._head, np.zeros(len(self._names), np.float32)
    search = beam.Search(1, 1, eos=0)
    row = decoder.open(2, min(search.extra, decoder.extra))
    try:
      token = compiled.Chunk(row, np.zeros(1, np.int32))
      rounds.prefill([token], rounds.shapes[0])
      searcher = beam.BeamSearch(
        decoder, search, calls=self._calls, arguments=arguments
      )
      searcher.begin(row, rounds.last_BLD)
      searcher.advance()
      searcher.adopt(searcher.finish()[0])
    finally:
      decoder.close(row)


@contextlib.contextmanager
def _errors_of(one: sequence_lib.Sequence) -> Iterator[None]:
  """Makes an error of a search the sequence's."""
  try:
    yield
  except (beam.BadScores, request_lib.BadLogits) as error:
    one.error = request_lib.BadLogits(f'sequence {one.number}: {error}')
  except (beam.Vetoed, beam_slots.Exhausted, pages.Full) as error:
    one.error = type(error)(f'sequence {one.number}: {error}')


def _search_of(request: request_lib.Request) -> beam.Search:
  guide = request.guided
  return beam.Search(
    guide.width,
    request.max_tokens,
    guide.candidates,
    eos=tuple(request.stop_tokens) or None,
    length_penalty=guide.length_penalty,
  )


def _judge(
  judge: judge_lib.Judge,
  candidates: beam_step.Candidates,
  params: Any,
  weight_C: jax.Array,
) -> beam_step.CandidateScores:
  """Scores candidates anew at each step: the head scores whole texts."""
  logits_BLC = judge.logits(params, candidates.hidden_CD[None])
  added_BL = token_head.reweigh(logits_BLC, weight_C)
  return beam_step.CandidateScores(
    candidates.total_C + added_BL[0], jax.nn.sigmoid(logits_BLC[0])
  )
