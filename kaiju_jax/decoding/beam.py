"""Beam search over one row of a cache, with a hook that sees hidden states.

Each step takes the best `candidates` expansions of the live beams by

    score(path) = Σ log p(token | path before it)

and runs all of them through the model in one call, as queries of one row. Each
then has its own hidden state, which a hook may read to change its score or to
veto it (−inf). The best `width` stay: those that end with `eos` have ended, the
others live on. So an ended beam takes a place among the `width` of its step
alone, and the next step has as many candidates as ever. Without a hook and with
candidates = width this is textbook beam search.

Ended beams, and at the end those that `depth` tokens cut off, are ranked by

    score / ((5 + tokens) / 6)^length_penalty

(Wu et al. 2016, equation 14, without coverage; eos is a token); a penalty of 0
is none. Without a hook, scores only fall, and the search stops once no live
beam can come among the results; with one it goes on to `depth`.

A fork copies no keys and no values: beams share one row's slots and differ in
what they see (`beam_tree.py`). The sources name classifier-guided beam search
and no more; the order of running, judging and keeping is our guess.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.decoding import beam_tree
from kaiju_jax.decoding import cache as cache_lib
from kaiju_jax.decoding import decoder as decoder_lib
from kaiju_jax.decoding import extend
from kaiju_jax.decoding import request
from kaiju_jax.decoding import row as row_lib


class Vetoed(RuntimeError):
  """The hook vetoed every candidate before any beam had ended."""


@dataclasses.dataclass(frozen=True)
class Search:
  """What to search for.

  Attributes:
    width: beams that stay after each step.
    depth: tokens that a beam has at most.
    candidates: expansions that are run and judged at each step, at least
      `width`; None for as many.
    eos: the token that ends a beam; None for none.
    length_penalty: exponent of the penalty, at least 0.
    results: how many beams are wanted, at most `width`.
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
    """Slots of a row beyond its text, prompt and `depth`, for any search.

    For the `extra` of `Decoder` and of `Decoder.open`, with pages of at least
    two slots.
    """
    resting = 0 if self.eos is None else self.resting
    beams = self.width - 1 + resting
    return beams * self.depth + self.queries - self.width

  def penalty(self, tokens: int) -> float:
    """What the score of a beam of `tokens` is divided by."""
    return ((5 + tokens) / 6) ** self.length_penalty

  def final(self, path: '_Path') -> float:
    return path.score / self.penalty(path.length)


class Candidates(NamedTuple):
  """What a hook sees of a step; C candidates, padding included.

  Padding has a score of −inf; what is said of it does not matter.

  Attributes:
    token_C: int32, the candidate's newest token.
    beam_C: int32, the live beam before it, 0 the best of the last step.
    log_probability_C: float32, of the token.
    total_C: float32, the sum of the path's log-probabilities.
    score_C: float32, the score of the beam before, as the hook left it, plus
      the token's log-probability.
    hidden_CD: the final, normed hidden state of the candidate itself.
  """

  token_C: jax.Array
  beam_C: jax.Array
  log_probability_C: jax.Array
  total_C: jax.Array
  score_C: jax.Array
  hidden_CD: jax.Array | None


# Returns float32 [C], the candidates' new scores; −inf vetoes. What it returns
# is what the scores of later tokens add to; total_C is there for hooks that
# judge each step afresh. Traced once: a pure function of arrays.
Hook = Callable[[Candidates], jax.Array]


@dataclasses.dataclass(frozen=True, eq=False)
class Beam:
  """One result.

  Attributes:
    tokens: after the prompt; the last is eos where the beam has ended.
    log_probabilities: of each token.
    score: what results are ranked by, length penalty included.
    ended: whether eos came; else `depth` cut it off.
  """

  tokens: tuple[int, ...]
  log_probabilities: tuple[float, ...]
  score: float
  ended: bool


class BeamSearch:
  """Searches rows of one decoder; compiles once for all steps and rows."""

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    search: Search,
    hook: Hook | None = None,
  ):
    """Prepares a search.

    Raises:
      ValueError: a decoder whose cache is in the order of text, or an eos
        outside the vocabulary.
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
    self._first = decoder.jit(functools.partial(_expand, decoder.network, top))
    self._step = decoder.jit(
      functools.partial(_step, decoder.network, hook, top), donate_argnums=1
    )
    self._last: tuple[_State, list[tuple[Beam, _End]]] | None = None

  def run(self, row: int, hidden_D: jax.Array) -> list[Beam]:
    """Returns the best beams after a row's text, the best first.

    The row then holds a tree: `adopt` one of the results, or close the row. So
    it does after an error.

    Args:
      row: of the decoder, open, with a text.
      hidden_D: the hidden state of the text's last token.

    Raises:
      ValueError: a row without text, or one that has no room for `depth` more
        tokens; scores of the hook that are NaN or +inf.
      beam_tree.Exhausted: the row has too few slots for the beams.
      Vetoed: the hook vetoed all candidates, and no beam had ended.
      request.BadLogits: the model gave no numbers; names the step.
    """
    state = self._start(row, hidden_D)
    self._last = None
    while state.live and state.step < self.search.depth:
      if self._hook is None and _is_decided(state, self.search):
        break
      self._advance(state)
    cut_off = [
      _End(path, self.search.final(path), number)
      for number, path in enumerate(state.live)
    ]
    best = sorted(state.ended + cut_off, key=lambda end: -end.final)
    found = [(_beam(end, self.search.eos), end) for end in best]
    self._last = state, found[: self.search.results]
    return [beam for beam, _ in self._last[1]]

  def adopt(self, beam: Beam) -> None:
    """Makes a result of the last search its row's text, and ends the tree.

    All its tokens are then in the cache, where `Decoder.extend_text` goes on.

    Raises:
      ValueError: not a result of the last search, one whose slots were not
        kept (`Search.resting`), or a row that is no longer the searched one.
    """
    state, found = self._last or (None, ())
    numbers = [end.number for result, end in found if result is beam]
    if not numbers:
      raise ValueError('beam is no result of the last search.')
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
    sources, firsts = row_lib.order(
      decoder.network.pools, state.tree.slots_of_text(), state.first, length
    )
    decoder.settle(state.row, sources, firsts, length)
    self._last = None

  def _start(self, row: int, hidden_D: jax.Array) -> '_State':
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
    pools = decoder.network.pools
    first = {
      kind: int(decoder.cache.kinds[kind].first_R[row]) for kind in pools
    }
    tree = beam_tree.BeamTree(length, row_lib.held(decoder.cache, pools, row))
    expansions = jax.device_get(self._first(decoder.params, hidden_D[None]))
    _check_logits(row, 0, expansions.is_nan_C)
    decoder.lend(row)
    return _State(row, length, first, tree, expansions)

  def _advance(self, state: '_State') -> None:
    """Grows all live beams by a token, and keeps the best."""
    parents, paths = _choose(state, self.search.queries)
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
    """Leaves the best candidates; those with eos end, the others live on."""
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
    state.ended += [_End(paths[x], search.final(paths[x]), x) for x in ended]
    state.ended.sort(key=lambda end: -end.final)
    del state.ended[search.results :]
    for end in state.ended[search.resting :]:
      end.number = None
    state.live = [paths[x] for x in survivors]
    state.expansions = _Expansions(*(x[survivors] for x in expansions))
    if survivors:
      resting = [end for end in state.ended if end.number is not None]
      state.tree.keep(survivors, [end.number for end in resting])
      for place, end in enumerate(resting):
        end.number = len(survivors) + place

  def _judge(self, state, placed, parents, paths):
    """Runs the candidates; returns their scores and their expansions."""
    decoder, size = self._decoder, self.search.queries
    chunk = row_lib.chunk(state.row, placed, [x.token for x in paths], size)

    def padded(values, fill, dtype):
      x_C = np.full(size, fill, dtype)
      x_C[: len(paths)] = values
      return x_C

    candidates = Candidates(
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


class _Expansions(NamedTuple):
  """The T likeliest next tokens of each beam, and whether there are none."""

  token_CT: Any
  log_probability_CT: Any
  is_nan_C: Any


class _Path(NamedTuple):
  """A beam as a chain of tokens from its newest to the prompt, no token."""

  before: '_Path | None' = None
  token: int = -1
  log_probability: float = 0.0
  total: float = 0.0
  score: float = 0.0
  length: int = 0

  def then(self, token: int, log_probability: float) -> '_Path':
    return _Path(
      self,
      token,
      log_probability,
      self.total + log_probability,
      self.score + log_probability,
      self.length + 1,
    )


@dataclasses.dataclass
class _End:
  """A path that may be a result; `number` in the tree, None if not kept."""

  path: _Path
  final: float
  number: int | None


@dataclasses.dataclass
class _State:
  """A search between two steps; `live` beams have the tree's numbers."""

  row: int
  length: int
  first: dict[str, int]
  tree: beam_tree.BeamTree
  expansions: _Expansions
  live: list[_Path] = dataclasses.field(default_factory=lambda: [_Path()])
  ended: list[_End] = dataclasses.field(default_factory=list)
  step: int = 0


def _choose(state: _State, count: int) -> tuple[list[int], list[_Path]]:
  """Returns the beams of the best expansions, and what they become."""
  token_CT, log_probability_CT, _ = state.expansions
  score_C = np.array([path.score for path in state.live])
  score_CT = score_C[:, None] + log_probability_CT
  best = np.argsort(-score_CT, axis=None, kind='stable')[:count]
  parents, paths = [], []
  for beam, place in zip(*np.unravel_index(best, score_CT.shape)):
    if score_CT[beam, place] > -np.inf:
      parents.append(int(beam))
      paths.append(
        state.live[beam].then(
          int(token_CT[beam, place]), float(log_probability_CT[beam, place])
        )
      )
  return parents, paths


def _is_decided(state: _State, search: Search) -> bool:
  """Whether no live beam can come among the results; scores only fall."""
  if len(state.ended) < search.results:
    return False
  most = max(path.score for path in state.live) / search.penalty(search.depth)
  return most <= state.ended[-1].final


def _beam(end: _End, eos: int | None) -> Beam:
  path, tokens, log_probabilities = end.path, [], []
  while path.before is not None:
    tokens.append(path.token)
    log_probabilities.append(path.log_probability)
    path = path.before
  return Beam(
    tuple(tokens[::-1]),
    tuple(log_probabilities[::-1]),
    end.final,
    tokens[0] == eos,
  )


def _check_logits(row: int, step: int, is_nan_C: np.ndarray) -> None:
  if is_nan_C.any():
    raise request.BadLogits(
      f'row {row}, step {step}: the logits of candidate'
      f' {int(is_nan_C.argmax())} hold NaN or +inf, or nothing but −inf.'
    )


def _check_scores(state: _State, score_C: np.ndarray) -> None:
  wrong_C = np.isnan(score_C) | (score_C == np.inf)
  if wrong_C.any():
    candidate = int(wrong_C.argmax())
    raise ValueError(
      f'row {state.row}, step {state.step}: the hook gave candidate {candidate}'
      f' the score {score_C[candidate]}; expected a number, or −inf for a veto.'
    )


def _step(
  network: extend.Network,
  hook: Hook | None,
  top: int,
  params: Any,
  cache: cache_lib.Cache,
  ranges: dict[str, beam_tree.Ranges],
  chunk: extend.Chunk,
  candidates: Candidates,
) -> tuple[tuple[jax.Array, _Expansions], cache_lib.Cache]:
  """Runs candidates; returns their scores and expansions, and the cache."""
  cache = cache_lib.reissue(cache, chunk.row_B[0], ranges)
  hidden_BLD, cache = extend.chunk(network, params, cache, chunk)
  candidates = candidates._replace(hidden_CD=hidden_BLD[0])
  score_C = candidates.score_C
  if hook is not None:
    score_C = jnp.asarray(hook(candidates))
    if score_C.shape != candidates.score_C.shape:
      raise ValueError(
        f'hook returned shape {score_C.shape}: expected'
        f' {candidates.score_C.shape}, a score for each candidate.'
      )
  return (score_C, _expand(network, top, params, hidden_BLD[0])), cache


def _expand(
  network: extend.Network, top: int, params: Any, hidden_CD: jax.Array
) -> _Expansions:
  logits_CV = network.model.apply(
    {'params': params}, hidden_CD[None], method='logits'
  )[0]
  log_probability_CV = jax.nn.log_softmax(logits_CV)
  log_probability_CT, token_CT = lax.top_k(log_probability_CV, top)
  is_nan_C = jnp.isnan(log_probability_CV).any(axis=1)
  return _Expansions(token_CT, log_probability_CT, is_nan_C)
