"""The beams of one search, as chains of tokens on the host.

`tree.py` keeps the slots of the cache that the beams hold.
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
  """One result of a search.

  Attributes:
    tokens: the tokens after the prompt; the last is eos if the beam has ended.
    log_probabilities: one per token.
    score: the rank, length penalty included.
    ended: whether eos came; otherwise `depth` cut it off.
    probabilities: per token, the token-level head's probability of each
      dimension for the text up to and with it; () without a head.
  """

  tokens: tuple[int, ...]
  log_probabilities: tuple[float, ...]
  score: float
  ended: bool
  probabilities: tuple[np.ndarray, ...] = ()


class Path(NamedTuple):
  """A beam as a linked list of tokens, newest first; the prompt is its end.

  Attributes:
    before: the path without its newest token; None for the prompt.
    token: the newest one, −1 for the prompt; log_probability is its own.
    total: sum of all tokens' log-probabilities; score as changed by the hook.
    probability_C: as in `Beam.probabilities`, of the newest token; or None.
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
  """A path that may become a result, and `final`, its rank.

  `number` is the beam's in the tree; None if it kept no slots.
  """

  path: Path
  final: float
  number: int | None


@dataclasses.dataclass
class State:
  """A search between two steps.

  Attributes:
    flying: arrays that the host has not read: the expansions of the text of
      `length` tokens, later scores and expansions of the `candidates`; or None.
    first: by kind the position of slot 0; None, as `tree`, before the row is
      lent.
    expansions: the next tokens of each live beam; None before they are read.
    live: the live beams, in the order of the tree's numbers.
    ended: the best ended beams, the best first.
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
  """Returns the `count` best expansions: their live beams and new paths."""
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
  """Returns whether no live beam can become a result any more.

  No score may exceed the sum of log-probabilities, which only falls. `penalty`
  divides the score of the longest beam.
  """
  if len(state.ended) < results:
    return False
  most = max(path.total for path in state.live) / penalty
  return most <= state.ended[-1].final


def result(end: End, ends: Collection[int]) -> Beam:
  """Returns a path as a result; it has ended if its last token is in `ends`."""
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
