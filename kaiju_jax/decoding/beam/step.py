"""One step of beam search on the device, with the hook that scores it.

Candidates are queries of one row: each sees the tokens of its own path
(`tree.py`), and the model gives each a hidden state of its own.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.decoding.beam import slots as beam_slots
from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import extend


class Candidates(NamedTuple):
  """The candidates of a step as a hook gets them: C of them, with padding.

  Padding has a score of −inf, and the score that a hook gives it is ignored.
  """

  # int32, the newest token; log_probability_C is its own, float32.
  token_C: jax.Array
  # int32, the live beam that it continues; 0 is the last step's best.
  beam_C: jax.Array
  log_probability_C: jax.Array
  # float32, the sum of the path's log-probabilities.
  total_C: jax.Array
  # float32, the previous beam's score after its hook, plus the token's
  # log-probability.
  score_C: jax.Array
  # The final, normed hidden state of the candidate itself.
  hidden_CD: jax.Array | None


# A hook returns the candidates' new scores, float32 [C]; −inf is a veto. Later
# tokens add their log-probabilities to these scores; a hook that judges each
# step anew starts from total_C. It is traced once, so that it must be a pure
# function of arrays.
Hook = Callable[[Candidates], jax.Array]


class CandidateScores(NamedTuple):
  """The scores of candidates, as a hook returns them.

  `probability_LC` are by candidate and dimension a token-level head's
  probabilities for the candidate's text; None without one.
  """

  score_C: Any
  probability_LC: Any = None


# A function of candidates and of arrays that may differ in each call.
Judge = Callable[..., CandidateScores]


class Expansions(NamedTuple):
  """The T likeliest next tokens of each beam, with their log-probabilities.

  `is_nan_C` says whether the logits hold NaN or +inf, or only −inf.
  """

  token_CT: Any
  log_probability_CT: Any
  is_nan_C: Any


def first(
  network: extend.Network,
  top: int,
  params: Any,
  hidden_BLD: jax.Array,
  place: jax.Array,
) -> Expansions:
  """Returns the `top` likeliest tokens after one of [B, 1, D] hidden states."""
  hidden_LD = lax.dynamic_index_in_dim(hidden_BLD, place, keepdims=False)
  return expand(network, top, params, hidden_LD)


def step(
  network: extend.Network,
  judge: Judge | None,
  top: int,
  params: Any,
  cache: cache_lib.Cache,
  ranges: dict[str, beam_slots.Ranges],
  chunk: extend.Chunk,
  candidates: Candidates,
  arguments: Sequence[Any],
) -> tuple[tuple[CandidateScores, Expansions], cache_lib.Cache]:
  """Runs candidates; returns their scores and expansions, and the cache."""
  cache = cache_lib.reissue(cache, chunk.row_B[0], ranges)
  hidden_BLD, cache = extend.chunk(network, params, cache, chunk)
  judged = CandidateScores(candidates.score_C)
  if judge is not None:
    judged = judge(candidates._replace(hidden_CD=hidden_BLD[0]), *arguments)
  return (judged, expand(network, top, params, hidden_BLD[0])), cache


def judge_of(hook: Hook) -> Judge:
  """Returns a judge that calls a hook, and refuses scores of another shape."""

  def judge(candidates: Candidates) -> CandidateScores:
    score_C = jnp.asarray(hook(candidates))
    if score_C.shape != candidates.score_C.shape:
      raise ValueError(
        f'hook returned shape {score_C.shape}: expected'
        f' {candidates.score_C.shape}, a score for each candidate.'
      )
    return CandidateScores(score_C)

  return judge


def expand(
  network: extend.Network, top: int, params: Any, hidden_CD: jax.Array
) -> Expansions:
  """Returns the `top` likeliest next tokens after each hidden state."""
  logits_CV = extend.logits(network, params, hidden_CD[None])[0]
  log_probability_CV = jax.nn.log_softmax(logits_CV)
  log_probability_CT, token_CT = lax.top_k(log_probability_CV, top)
  is_nan_C = jnp.isnan(log_probability_CV).any(axis=1)
  return Expansions(token_CT, log_probability_CT, is_nan_C)
