"""Beam search over one row of a cache, with a hook that sees hidden states.

Each step takes the best `candidates` expansions of the live beams by

    score(path) = Σ log p(token | path before it)

and runs them through the model in one call, as queries of one row. Each then
has its own hidden state, from which a hook may change its score or veto it
(−inf). The best `width` stay: those that end with `eos` have ended and count
towards the `width` in that step only, the others live on. Without a hook and
with candidates = width this is textbook beam search.

Ended beams, and at the end those that `depth` cuts off, are ranked by

    score / ((5 + tokens) / 6)^length_penalty

(Wu et al. 2016, equation 14, without coverage; eos counts as a token). If no
score exceeds the sum of log-probabilities, as without a hook, the search stops
once no live beam can become a result; otherwise it goes on to `depth`.

A search runs as a whole (`run`), or a step at a time beside other calls:

    searcher.begin(row, hidden_BLD)
    while not searcher.is_done:
      searcher.advance()      # or dispatch(), something else, and finish_step()
    best, *others = searcher.finish()

Beams share one row's slots and differ in what they see (`tree.py`). The sources
name classifier-guided beam search and say no more; the order of running,
judging and keeping is our guess.
"""

from collections.abc import Collection
from collections.abc import Sequence
import dataclasses
import numbers
from typing import Any

import jax
import numpy as np

from kaiju_jax.decoding.beam import calls as beam_calls
from kaiju_jax.decoding.beam import paths as beam_paths
from kaiju_jax.decoding.beam import row as beam_row
from kaiju_jax.decoding.beam import step as beam_step
from kaiju_jax.decoding.beam import tree as beam_tree
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.requests import request


class Vetoed(RuntimeError):
  """An error: the hook vetoed every candidate before any beam had ended."""


class BadScores(ValueError):
  """An error: the hook gave a candidate NaN or +inf."""


@dataclasses.dataclass(frozen=True)
class Search:
  """The settings of a search."""

  # Beams that stay after each step.
  width: int
  # Most tokens of a beam.
  depth: int
  # Expansions that are run and judged at each step, at least `width`; None for
  # `width` of them.
  candidates: int | None = None
  # The token that ends a beam, or several; None for none.
  eos: int | Collection[int] | None = None
  # Exponent of the penalty, at least 0.
  length_penalty: float = 0.0
  # How many beams are returned, at most `width`.
  results: int = 1
  # How many of the best ended beams keep their slots, so that they can become
  # the row's text (`BeamSearch.adopt`).
  resting: int = 1

  def __post_init__(self) -> None:
    for name, least in (
      ('width', 1),
      ('depth', 1),
      ('results', 1),
      ('resting', 0),
    ):
      if getattr(self, name) < least:
        raise ValueError(
          f'{name}={getattr(self, name)}: must be at least {least}.'
        )
    if self.candidates is not None and self.candidates < self.width:
      raise ValueError(
        f'candidates={self.candidates}: must be at least width={self.width}.'
      )
    if self.results > self.width:
      raise ValueError(
        f'results={self.results}: must be at most width={self.width}.'
      )
    if not 0 <= self.length_penalty < float('inf'):
      raise ValueError(
        f'length_penalty={self.length_penalty}: must be finite and at least 0.'
      )

  @property
  def ends(self) -> frozenset[int]:
    if self.eos is None:
      return frozenset()
    is_one = isinstance(self.eos, numbers.Integral)
    return frozenset([self.eos] if is_one else self.eos)

  @property
  def queries(self) -> int:
    return self.width if self.candidates is None else self.candidates

  @property
  def extra(self) -> int:
    """Slots beyond prompt and `depth` that a search takes at most.

    It is the `extra` of `Decoder.open`, for pages of at least two slots.
    """
    resting = self.resting if self.ends else 0
    beams = self.width - 1 + resting
    return beams * self.depth + self.queries - self.width

  def penalty(self, tokens: int) -> float:
    """Returns the divisor of the score of a beam of `tokens`."""
    return ((5 + tokens) / 6) ** self.length_penalty

  def final(self, path: beam_paths.Path) -> float:
    return path.score / self.penalty(path.length)


class BeamSearch:
  """Searches of one decoder's rows, one after another."""

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    search: Search,
    hook: beam_step.Hook | None = None,
    *,
    calls: beam_calls.Calls | None = None,
    arguments: Sequence[Any] = (),
    is_bounded: bool = False,
    keeps_pages: bool = False,
  ):
    """Prepares searches.

    Args:
      decoder, search: the model with its cache, and the settings.
      hook: scores the candidates (`step.Hook`); None for none.
      calls: shared with other searches of the decoder, with their judge; then
        pass no hook.
      arguments: the judge's arguments beside the candidates.
      is_bounded: whether no score ever exceeds `Candidates.total_C`.
      keeps_pages: whether the pages of an adopted result hold all that a point
        needs; `Search.extra` then suffices if at least one beam may rest.

    Raises ValueError: a decoder in the reference mode, an eos outside the
    vocabulary, or calls of fewer candidates.
    """
    vocab_size = decoder.tokens
    for eos in search.ends:
      if not 0 <= eos < vocab_size:
        raise ValueError(f'eos={eos}: a token is 0…{vocab_size - 1}.')
    if calls is None:
      judge = None if hook is None else beam_step.judge_of(hook)
      calls = beam_calls.Calls(decoder, search.queries, judge)
    if calls.size < search.queries:
      raise ValueError(
        f'candidates={search.queries}: calls run {calls.size} at most.'
      )
    self.search = search
    self.calls = calls
    self._decoder = decoder
    self._arguments = arguments
    self._is_bounded = is_bounded or not calls.is_judged
    self._keeps_pages = keeps_pages
    self._state: beam_paths.State | None = None
    self._found: list[tuple[beam_paths.Beam, beam_paths.End]] = []

  def run(self, row: int, hidden_D: jax.Array) -> list[beam_paths.Beam]:
    """Returns the best beams after a row's text, the best first.

    `hidden_D` is of the text's last token. The row then holds a tree, after an
    error too: `adopt` one of the results, or close the row.

    Raises:
      ValueError: a row without text, or without room for `depth` more tokens.
      BadScores, Vetoed: by the hook.
      request.BadLogits: the logits were no numbers; names the step.
      slots.Exhausted, pages.Full: too few slots, or pages, for the beams.
    """
    if hidden_D.shape != (self._decoder.config.d_model,):
      raise ValueError(
        f'hidden_D has shape {hidden_D.shape}: expected'
        f' ({self._decoder.config.d_model},), of the last token alone.'
      )
    self.begin(row, hidden_D[None, None])
    while not self.is_done:
      self.advance()
    return self.finish()

  @property
  def step(self) -> int:
    return 0 if self._state is None else self._state.step

  @property
  def is_done(self) -> bool:
    """Whether no beam may grow any more, as of the last step that was read."""
    state, search = self._state, self.search
    if not state.live or state.step >= search.depth:
      return True
    return self._is_bounded and beam_paths.is_decided(
      state, search.results, search.penalty(search.depth)
    )

  def begin(self, row: int, hidden_BLD: jax.Array, place: int = 0) -> None:
    """Starts a search after a row's text, without waiting for the device.

    The last token is entry `place` of `hidden_BLD`. Raises ValueError as `run`.
    """
    decoder, depth = self._decoder, self.search.depth
    decoder.check_text(row)
    length, room = decoder.length_of(row), decoder.room_of(row)
    if not length or room < depth:
      raise ValueError(
        f'row {row} holds {length} tokens and has room for {room} more:'
        f' expected a text, and room for depth={depth}.'
      )
    flying = self.calls.first(hidden_BLD, place)
    self._state, self._found = beam_paths.State(row, length, flying), []

  def advance(self) -> None:
    """Grows all live beams by a token, and keeps the best; raises as `run`."""
    self.dispatch()
    self.finish_step()

  def dispatch(self) -> None:
    """Starts the next step, for `finish_step` to read; raises as `run`."""
    self.finish_step()
    state = self._state
    if state.tree is None:
      self._plant(state)
    parents, paths = beam_paths.choose(state, self.search.queries)
    resting = [end for end in state.ended if end.number is not None]
    placed = state.tree.grow(parents, [end.number for end in resting])
    for place, end in enumerate(resting):
      end.number = len(paths) + place
    state.flying = self.calls.step(
      state.row, placed, parents, paths, self._arguments
    )
    state.candidates = paths

  def finish_step(self) -> None:
    """Waits for a dispatched step and keeps the best; raises as `run`."""
    state = self._state
    if state.flying is None:
      return
    flying, state.flying = jax.device_get(state.flying), None
    if state.expansions is None:
      _check_logits(state.row, 0, flying.is_nan_C)
      state.expansions = flying
      return
    judged, expansions = flying
    paths = state.candidates
    state.step += 1
    _check_logits(state.row, state.step, expansions.is_nan_C[: len(paths)])
    if self.calls.is_judged:
      _check_scores(state, judged.score_C[: len(paths)])
      paths = [
        x._replace(score=float(y)) for x, y in zip(paths, judged.score_C)
      ]
    if judged.probability_LC is not None:
      paths = [
        x._replace(probability_C=y_C)
        for x, y_C in zip(paths, judged.probability_LC)
      ]
    self._keep(state, paths, expansions)

  def finish(self) -> list[beam_paths.Beam]:
    """Returns the best beams so far, live ones too; the row holds a tree."""
    self.finish_step()
    state = self._state
    cut_off = [
      beam_paths.End(path, self.search.final(path), number)
      for number, path in enumerate(state.live)
      if path.length
    ]
    best = sorted(state.ended + cut_off, key=lambda end: -end.final)
    ends = self.search.ends
    found = [(beam_paths.result(end, ends), end) for end in best]
    self._found = found[: self.search.results]
    return [beam for beam, _ in self._found]

  def adopt(self, beam: beam_paths.Beam) -> None:
    """Makes a result of the last search its row's text, and ends the tree.

    Raises ValueError: no such result, one whose slots were not kept
    (`Search.resting`), or a row that was closed or extended since.
    """
    state = self._state
    numbers = [end.number for result, end in self._found if result is beam]
    if not numbers:
      raise ValueError('beam is no result of the last search of this row.')
    if numbers[0] is None:
      raise ValueError(
        f'beam ended, as {self.search.resting} better ones did, and kept no'
        ' slots: ask for more `resting`.'
      )
    decoder = self._decoder
    if decoder.length_of(state.row) != state.length:
      raise ValueError(
        f'row {state.row} holds {decoder.length_of(state.row)} tokens: it was'
        f' searched with {state.length}, and closed or extended since.'
      )
    state.tree.settle(numbers[0])
    length = state.length + len(beam.tokens)
    sources, firsts = beam_row.order(
      decoder.network.pools, state.tree.slots_of_text(), state.first, length
    )
    decoder.settle(state.row, sources, firsts, length)
    self._found = []

  def _plant(self, state: beam_paths.State) -> None:
    """Lends the row to the search, and makes its text the trunk of a tree."""
    decoder, row = self._decoder, state.row
    decoder.lend(row)
    account, pools = decoder.account, decoder.network.pools
    state.first = account.firsts(row)
    state.tree = beam_tree.BeamTree(
      state.length,
      beam_row.find_held(account, pools, row, state.length, self._keeps_pages),
    )

  def _keep(self, state, paths, expansions) -> None:
    """Keeps the best candidates; those with eos end, the others live on."""
    search = self.search
    best = sorted(range(len(paths)), key=lambda number: -paths[number].score)
    best = [x for x in best[: search.width] if paths[x].score > -np.inf]
    if not best and not state.ended:
      raise Vetoed(
        f'row {state.row}, step {state.step}: the hook vetoed all'
        f' {len(paths)} candidates, and no beam has ended.'
      )
    ends = search.ends
    survivors = [x for x in best if paths[x].token not in ends]
    ended = [x for x in best if paths[x].token in ends]
    state.ended += [
      beam_paths.End(paths[x], search.final(paths[x]), x) for x in ended
    ]
    state.ended.sort(key=lambda end: -end.final)
    del state.ended[search.results :]
    for end in state.ended[search.resting :]:
      end.number = None
    state.live = [paths[x] for x in survivors]
    state.expansions = beam_step.Expansions(*(x[survivors] for x in expansions))
    if survivors:
      resting = [end for end in state.ended if end.number is not None]
      state.tree.keep(survivors, [end.number for end in resting])
      for place, end in enumerate(resting):
        end.number = len(survivors) + place


def _check_logits(row: int, step: int, is_nan_C: np.ndarray) -> None:
  if is_nan_C.any():
    raise request.BadLogits(
      f'row {row}, step {step}: the logits of candidate'
      f' {int(is_nan_C.argmax())} hold NaN or +inf, or nothing but −inf.'
    )


def _check_scores(state: beam_paths.State, score_C: np.ndarray) -> None:
  wrong_C = np.isnan(score_C) | (score_C == np.inf)
  if wrong_C.any():
    candidate = int(wrong_C.argmax())
    raise BadScores(
      f'row {state.row}, step {state.step}: the hook gave candidate {candidate}'
      f' the score {score_C[candidate]}; expected a number, or −inf for a veto.'
    )
