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
  """One result of a search."""

  # The tokens after the prompt; the last is eos if the beam has ended.
  tokens: tuple[int, ...]
  # One per token.
  log_probabilities: tuple[float, ...]
  # The rank, length penalty included.
  score: float
  # Whether eos came; otherwise `depth` cut it off.
  ended: bool
  # Per token, the token-level head's probability of each dimension for the text
  # up to and with it; () without a head.
  probabilities: tuple[np.ndarray, ...] = ()


class Path(NamedTuple):
  """A beam as a linked list of tokens, newest first; the prompt is its end."""

  # The path without its newest token; None for the prompt.
  before: 'Path | None' = None
  # The newest one, −1 for the prompt; log_probability is its own.
  token: int = -1
  log_probability: float = 0.0
  # Sum of all tokens' log-probabilities; score as changed by the hook.
  total: float = 0.0
  score: float = 0.0
  length: int = 0
  # As in `Beam.probabilities`, of the newest token; or None.
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
  """A search between two steps."""

  row: int
  length: int
  # Arrays that the host has not read: the expansions of the text of `length`
  # tokens, later scores and expansions of the `candidates`; or None.
  flying: Any = None
  candidates: Sequence[Path] = ()
  # By kind the position of slot 0; None, as `tree`, before the row is lent.
  first: dict[str, int] | None = None
  tree: beam_tree.BeamTree | None = None
  # The next tokens of each live beam; None before they are read.
  expansions: beam_step.Expansions | None = None
  # The live beams, in the order of the tree's numbers.
  live: list[Path] = dataclasses.field(default_factory=lambda: [Path()])
  # The best ended beams, the best first.
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
