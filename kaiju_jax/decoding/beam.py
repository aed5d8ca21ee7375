"""Beam search over one row of a cache, with a hook that sees hidden states.

Each step takes the best `candidates` expansions of the live beams by

    score(path) = Σ log p(token | path before it)

and runs all of them through the model in one call, as queries of one row. Each
then has its own hidden state, which a hook may read to change its score or to
veto it (−inf). The best `width` stay: those that end with `eos` have ended, the
others live on. A beam that ends counts towards the `width` in its last step
only, so that later steps again have `candidates` expansions. Without a hook and
with candidates = width this is textbook beam search.

Ended beams, and at the end those that `depth` tokens cut off, are ranked by

    score / ((5 + tokens) / 6)^length_penalty

(Wu et al. 2016, equation 14, without coverage; eos counts as a token); an
exponent of 0 is no penalty. Without a hook, scores only fall, and the search
stops once no live beam can become a result; with a hook it goes on to `depth`.

A fork copies no keys and no values: beams share one row's slots and differ in
what they see (`beam_tree.py`). The sources name classifier-guided beam search
and say no more; the order of running, judging and keeping is our guess.
"""

import dataclasses
import functools

import jax
import numpy as np

from kaiju_jax.decoding import beam_paths
from kaiju_jax.decoding import beam_row
from kaiju_jax.decoding import beam_step
from kaiju_jax.decoding import beam_tree
from kaiju_jax.decoding import decoder as decoder_lib
from kaiju_jax.decoding import request


class Vetoed(RuntimeError):
  """The hook vetoed every candidate before any beam had ended."""


@dataclasses.dataclass(frozen=True)
class Search:
  """What to search for.

  Attributes:
    width: beams that stay after each step.
    depth: tokens that a beam has at most.
    candidates: expansions that are run and judged at each step, at least
      `width`; None for `width` of them.
    eos: the token that ends a beam; None for none.
    length_penalty: exponent of the penalty, at least 0.
    results: how many beams are returned, at most `width`.
    resting: how many of the best ended beams keep their slots, so that they
      can become the row's text (`BeamSearch.adopt`).
  """

  width: int
  depth: int
  candidates: int | None = None
  eos: int | None = None
  length_penalty: float = 0.0
  results: int = 1
  resting: int = 1

  def __post_init__(self):
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
  def queries(self) -> int:
    """Candidates of a step."""
    return self.width if self.candidates is None else self.candidates

  @property
  def extra(self) -> int:
    """Slots that any search takes beyond its text, prompt and `depth`.

    It is the `extra` of `Decoder` and of `Decoder.open`, for pages of at least
    two slots.
    """
    resting = 0 if self.eos is None else self.resting
    beams = self.width - 1 + resting
    return beams * self.depth + self.queries - self.width

  def penalty(self, tokens: int) -> float:
    """Returns what the score of a beam of `tokens` is divided by."""
    return ((5 + tokens) / 6) ** self.length_penalty

  def final(self, path: beam_paths.Path) -> float:
    return path.score / self.penalty(path.length)


class BeamSearch:
  """Searches rows of one decoder; all steps and rows share a compilation."""

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    search: Search,
    hook: beam_step.Hook | None = None,
  ):
    """Prepares a search.

    Args:
      decoder: the model and its cache.
      search: what to search for.
      hook: judges the candidates (`beam_step.Hook`); None for none.

    Raises:
      ValueError: a decoder in the reference mode, or an eos outside the
        vocabulary.
    """
    vocab_size = decoder.config.vocab_size
    if decoder.network.reference_length is not None:
      raise ValueError(
        "mode='reference' reads rows in the order of their positions, which"
        " beams share: beam search needs a Decoder of mode='fast'."
      )
    if search.eos is not None and not 0 <= search.eos < vocab_size:
      raise ValueError(f'eos={search.eos}: a token is 0…{vocab_size - 1}.')
    self.search = search
    self._decoder = decoder
    self._hook = hook
    top = min(search.queries, vocab_size)
    self._first = decoder.jit(
      functools.partial(beam_step.expand, decoder.network, top)
    )
    self._step = decoder.jit(
      functools.partial(beam_step.step, decoder.network, hook, top),
      donate_argnums=1,
    )
    self._last: beam_paths.State | None = None
    self._found: list[tuple[beam_paths.Beam, beam_paths.End]] = []

  def run(self, row: int, hidden_D: jax.Array) -> list[beam_paths.Beam]:
    """Returns the best beams after a row's text, the best first.

    The row then holds a tree, after an error too: `adopt` one of the results,
    or close the row.

    Args:
      row: the index of the decoder's row, which is open and holds a text.
      hidden_D: the hidden state of the text's last token.

    Raises:
      ValueError: a row without text, or one that has no room for `depth` more
        tokens; scores of the hook that are NaN or +inf.
      beam_slots.Exhausted: the row has too few slots for the beams.
      Vetoed: the hook vetoed all candidates, and no beam had ended.
      request.BadLogits: the model gave no numbers; names the step.
    """
    state = self._start(row, hidden_D)
    self._found = []
    while state.live and state.step < self.search.depth:
      if self._is_decided(state):
        break
      self._advance(state)
    cut_off = [
      beam_paths.End(path, self.search.final(path), number)
      for number, path in enumerate(state.live)
    ]
    best = sorted(state.ended + cut_off, key=lambda end: -end.final)
    found = [(beam_paths.result(end, self.search.eos), end) for end in best]
    self._last, self._found = state, found[: self.search.results]
    return [beam for beam, _ in self._found]

  def adopt(self, beam: beam_paths.Beam) -> None:
    """Makes a result of the last search its row's text, and ends the tree.

    All its tokens are then in the cache, and `Decoder.extend_text` appends to
    them.

    Raises:
      ValueError: not a result of the last search, one whose slots were not
        kept (`Search.resting`), or a row that is no longer the searched one.
    """
    state = self._last
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

  def _is_decided(self, state: beam_paths.State) -> bool:
    """Returns whether the results are known; a hook may yet raise a score."""
    search = self.search
    return self._hook is None and beam_paths.is_decided(
      state, search.results, search.penalty(search.depth)
    )

  def _start(self, row: int, hidden_D: jax.Array) -> beam_paths.State:
    decoder, depth = self._decoder, self.search.depth
    decoder.check_text(row)
    length, room = decoder.length_of(row), decoder.room_of(row)
    if not length or room < depth:
      raise ValueError(
        f'row {row} holds {length} tokens and has room for {room} more:'
        f' expected a text, and room for depth={depth}.'
      )
    if hidden_D.shape != (decoder.config.d_model,):
      raise ValueError(
        f'hidden_D has shape {hidden_D.shape}: expected'
        f' ({decoder.config.d_model},), of the last token alone.'
      )
    expansions = jax.device_get(self._first(decoder.params, hidden_D[None]))
    _check_logits(row, 0, expansions.is_nan_C)
    decoder.lend(row)
    pools = decoder.network.pools
    first = {
      kind: int(decoder.cache.kinds[kind].first_R[row]) for kind in pools
    }
    tree = beam_tree.BeamTree(length, beam_row.held(decoder.cache, pools, row))
    return beam_paths.State(row, length, first, tree, expansions)

  def _advance(self, state: beam_paths.State) -> None:
    """Grows all live beams by a token, and keeps the best."""
    parents, paths = beam_paths.choose(state, self.search.queries)
    resting = [end for end in state.ended if end.number is not None]
    placed = state.tree.grow(parents, [end.number for end in resting])
    score_C, expansions = self._judge(state, placed, parents, paths)
    state.step += 1
    _check_logits(state.row, state.step, expansions.is_nan_C[: len(paths)])
    if self._hook is not None:
      _check_scores(state, score_C[: len(paths)])
      paths = [x._replace(score=float(y)) for x, y in zip(paths, score_C)]
    for place, end in enumerate(resting):
      end.number = len(paths) + place
    self._keep(state, paths, expansions)

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
    survivors = [x for x in best if paths[x].token != search.eos]
    ended = [x for x in best if paths[x].token == search.eos]
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

  def _judge(self, state, placed, parents, paths):
    """Runs the candidates; returns their scores and their expansions."""
    decoder, size = self._decoder, self.search.queries
    chunk = beam_row.chunk(state.row, placed, [x.token for x in paths], size)

    def padded(values, fill, dtype):
      x_C = np.full(size, fill, dtype)
      x_C[: len(paths)] = values
      return x_C

    candidates = beam_step.Candidates(
      chunk.tokens_BL[0],
      padded(parents, 0, np.int32),
      padded([x.log_probability for x in paths], -np.inf, np.float32),
      padded([x.total for x in paths], -np.inf, np.float32),
      padded([x.score for x in paths], -np.inf, np.float32),
      None,
    )
    return jax.device_get(
      decoder.run(self._step, placed.ranges, chunk, candidates)
    )


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
    raise ValueError(
      f'row {state.row}, step {state.step}: the hook gave candidate {candidate}'
      f' the score {score_C[candidate]}; expected a number, or −inf for a veto.'
    )
