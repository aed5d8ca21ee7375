"""The beams of one search: chains of tokens, those that ended, and the best.

Everything here is on the host. Which slots of the cache the beams hold is the
matter of `beam_tree.py`.
"""

from collections.abc import Collection
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.beam import step as beam_step
from kaiju_jax.decoding.beam import tree as beam_tree


@dataclasses.dataclass(frozen=True, eq=False)
class Beam:
  """One result.

  Attributes:
    tokens: the tokens after the prompt; the last is eos where the beam has
      ended.
    log_probabilities: the log-probability of each token.
    score: what results are ranked by, length penalty included.
    ended: whether eos came; otherwise `depth` cut it off.
    probabilities: what a token-level head gives the text up to and with each
      token, by dimension; () without a head.
  """

  tokens: tuple[int, ...]
  log_probabilities: tuple[float, ...]
  score: float
  ended: bool
  probabilities: tuple[np.ndarray, ...] = ()


class Path(NamedTuple):
  """A beam as a chain of tokens, newest first; the prompt is the last link.

  Attributes:
    before: the path without its newest token; None for the prompt.
    token: the newest token; −1 for the prompt.
    log_probability: the log-probability of the token.
    total: sum of the log-probabilities of all tokens.
    score: the same, as the hook left it.
    length: tokens after the prompt.
    probability_C: what a token-level head gives the text with the newest token,
      by dimension; None without a head.
  """

  before: 'Path | None' = None
  token: int = -1
  log_probability: float = 0.0
  total: float = 0.0
  score: float = 0.0
  length: int = 0
  probability_C: np.ndarray | None = None

  def then(self, token: int, log_probability: float) -> 'Path':
    return Path(
      self,
      token,
      log_probability,
      self.total + log_probability,
      self.score + log_probability,
      self.length + 1,
    )


@dataclasses.dataclass
class End:
  """A path that may be a result.

  Attributes:
    path: the tokens.
    final: what results are ranked by.
    number: the beam's number in the tree; None where it kept no slots.
  """

  path: Path
  final: float
  number: int | None


@dataclasses.dataclass
class State:
  """A search between two steps.

  Attributes:
    row: the cache row's index.
    length: tokens of the text that was searched from.
    flying: what the device makes and the host has not read: the expansions of
      the text, or what candidates are worth and their expansions; None for
      nothing.
    candidates: the paths of that step; () before the first.
    first: the position of slot 0, by layer kind; None before the row is lent.
    tree: which slots the beams hold; None before the row is lent.
    expansions: what may follow each live beam; None before they were read.
    live: the live beams, in the order of the tree's numbers.
    ended: the best ended beams, best first.
    step: tokens that live beams have.
  """

  row: int
  length: int
  flying: Any = None
  candidates: Sequence[Path] = ()
  first: dict[str, int] | None = None
  tree: beam_tree.BeamTree | None = None
  expansions: beam_step.Expansions | None = None
  live: list[Path] = dataclasses.field(default_factory=lambda: [Path()])
  ended: list[End] = dataclasses.field(default_factory=list)
  step: int = 0


def choose(state: State, count: int) -> tuple[list[int], list[Path]]:
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


def is_decided(state: State, results: int, penalty: float) -> bool:
  """Returns whether no live beam can become a result.

  That holds where no score is ever above the sum of log-probabilities, because
  sums only fall.

  Args:
    state: the search's state.
    results: how many are asked for.
    penalty: what the score of the longest beam is divided by.
  """
  if len(state.ended) < results:
    return False
  most = max(path.total for path in state.live) / penalty
  return most <= state.ended[-1].final


def result(end: End, ends: Collection[int]) -> Beam:
  """Returns a path as a result, which has ended if its last token is one."""
  path, links = end.path, []
  while path.before is not None:
    links.append(path)
    path = path.before
  links.reverse()
  return Beam(
    tuple(x.token for x in links),
    tuple(x.log_probability for x in links),
    end.final,
    links[-1].token in ends,
    tuple(x.probability_C for x in links if x.probability_C is not None),
  )
