"""The calls of an engine's round, as pure functions for the device.

    prefill   appends the next chunks of a few rows' prompts
    first     draws the tokens that follow prompts
    step      appends the drawn tokens of all rows that go on, draws the next

Prefill and step have two parts, before the model and behind it: the text that
they append, and their end, which takes its hidden states (`device/layered.py`).
Shapes are static; which rows go on and how they draw are values. Tokens and
log-probabilities come back in one array. A token-level head scores appended
tokens: a step scores the token that the call before it drew.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.device import judge as judge_lib
from kaiju_jax.decoding.requests import alternatives as alternatives_lib
from kaiju_jax.decoding.requests import penalties
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.sharding import collectives


class RoundState(NamedTuple):
  """Each row's state of drawing; it stays on the device."""

  # int32, drawn and not in the cache yet.
  token_R: jax.Array
  settings: sampling_lib.Settings
  texts: penalties.Texts


class Chunks(NamedTuple):
  """The next tokens of B rows, int32; each row at most once."""

  row_B: Any
  tokens_BL: Any
  # The successors to score.
  next_BL: Any
  # The tokens of each row; 0 leaves a row as it is.
  count_B: Any


class Scores(NamedTuple):
  """Log-probabilities of a chunk's successors, and which are the likeliest."""

  log_probability_L: jax.Array
  is_likeliest_L: jax.Array
  alternatives: alternatives_lib.Alternatives | None = None


def initial(rows: int, vocab_size: int) -> RoundState:
  """Returns the state of unused rows."""
  settings = sampling_lib.settings(
    [sampling_lib.Sampling(temperature=0)] * rows
  )
  nothing = np.zeros(0, np.int32)
  text = penalties.read(nothing, 0, nothing, vocab_size)
  return RoundState(
    jnp.zeros((rows,), jnp.int32),
    sampling_lib.Settings(*map(jnp.asarray, settings)),
    jax.tree.map(lambda x: jnp.tile(x, (rows, 1)), text),
  )


def join(
  state: RoundState,
  row: jax.Array,
  settings: sampling_lib.Settings,
  text: penalties.Texts,
) -> RoundState:
  """Returns the state in which row `row` draws by these settings, arrays [1].

  `text` is that of its prompt and of what it has drawn (`penalties.read`).
  """

  def set_row(all_R, one):
    return all_R.at[row].set(one)

  return state._replace(
    settings=jax.tree.map(
      lambda all_R, one: set_row(all_R, one[0]), state.settings, settings
    ),
    texts=jax.tree.map(set_row, state.texts, text),
  )


def prefill_text(state: RoundState, chunks: Chunks) -> tuple[jax.Array, ...]:
  """Returns rows, tokens and counts that a prefill appends (`extend.text`)."""
  del state
  return chunks.row_B, chunks.tokens_BL, chunks.count_B


def end_prefill(
  network: extend.Network,
  judge: judge_lib.Judge | None,
  rows: int,
  is_scored: bool,
  params: Any,
  cache: cache_lib.Cache,
  state: RoundState,
  hidden_BLD: jax.Array,
  chunks: Chunks,
  head: Any = None,
  *,
  alternatives: int = 0,
) -> tuple[RoundState, jax.Array, Scores | None, jax.Array | None]:
  """Returns what a prefill does beside the cache.

  `judge` and its parameters `head` are None without a token-level head; `rows`
  are those of `first`, at least B; `is_scored` asks for `Scores` of the first
  row. Returns the state, the hidden states [rows, 1, D] of each row's last
  token, zeros beyond B, the scores or None, and the head's probabilities [B, L,
  C] of all tokens, padding included, or None.
  """
  del cache
  row_B, _, next_BL, count_B = chunks
  last_B11 = jnp.maximum(count_B - 1, 0)[:, None, None]
  last_BLD = jnp.take_along_axis(hidden_BLD, last_B11, axis=1)
  scores = None
  if is_scored:
    scores = _scores(
      extend.logits(network, params, hidden_BLD[:1])[0],
      next_BL[0],
      alternatives,
    )
  # All shapes of a prefill share one program of `first`.
  beyond = 0, rows - len(row_B)
  last_BLD = jnp.pad(last_BLD, (beyond, (0, 0), (0, 0)))
  probability_BLC = None
  if judge is not None:
    probability_BLC = judge.probability(head, hidden_BLD)
  return state, last_BLD, scores, probability_BLC


def first(
  network: extend.Network,
  params: Any,
  state: RoundState,
  row_B: jax.Array,
  index_B: jax.Array,
  draws_B: jax.Array,
  last_BLD: jax.Array,
  *,
  alternatives: int = 0,
) -> tuple[RoundState, jax.Array]:
  """Draws the tokens that follow prompts; others as in `end_prefill`.

  `row_B` are rows of the cache, each at most once; `index_B` the tokens of
  their texts; `draws_B` whether a prompt has ended; `last_BLD` the hidden
  states of `end_prefill`. Returns the state, and the B tokens as `_draw` packs
  them; those of rows that draw none mean nothing.
  """
  logits_BLV = extend.logits(network, params, last_BLD, by_rows=True)
  drawn_NB = _draw(state, row_B, draws_B, logits_BLV, index_B, alternatives)
  kept_B = jnp.where(draws_B, drawn_NB[0], state.token_R[row_B])
  state = state._replace(token_R=state.token_R.at[row_B].set(kept_B))
  return state, drawn_NB


def step_text(
  state: RoundState, row_B: jax.Array, count_B: jax.Array
) -> tuple[jax.Array, ...]:
  """Returns rows, tokens and counts that a step appends (`extend.text`)."""
  return row_B, jnp.maximum(state.token_R[row_B], 0)[:, None], count_B


def end_step(
  network: extend.Network,
  judge: judge_lib.Judge | None,
  params: Any,
  cache: cache_lib.Cache,
  state: RoundState,
  hidden_BLD: jax.Array,
  row_B: jax.Array,
  count_B: jax.Array,
  head: Any = None,
  *,
  alternatives: int = 0,
) -> tuple[RoundState, jax.Array]:
  """Draws the next tokens; other arguments as in `end_prefill`.

  The `cache` holds the appended tokens. `row_B` are its rows, each at most
  once; `count_B` is 1 for rows that go on, 0 for the others, whose drawn tokens
  mean nothing. Returns the state, and the B tokens as `_draw` packs them, with
  the head's probabilities behind them.
  """
  token_B = state.token_R[row_B]
  is_on_B = count_B > 0
  texts = penalties.append(state.texts, row_B, token_B, is_on_B)
  state = state._replace(texts=texts)
  logits_BLV = extend.logits(network, params, hidden_BLD, by_rows=True)
  index_B = cache.length_R[row_B]
  drawn_NB = _draw(state, row_B, is_on_B, logits_BLV, index_B, alternatives)
  kept_B = jnp.where(is_on_B, drawn_NB[0], token_B)
  state = state._replace(token_R=state.token_R.at[row_B].set(kept_B))
  if judge is not None:
    judged_CB = _bits(judge.probability(head, hidden_BLD)[:, 0].T)
    drawn_NB = jnp.concatenate([drawn_NB, judged_CB])
  return state, drawn_NB


def concatenate(scored: Sequence[tuple[Scores, slice]]) -> Scores:
  """Returns the scores of chunks, the entries that count, on the host."""
  found = [
    jax.tree.map(lambda x, y=kept: np.asarray(x)[y], one)
    for one, kept in scored
  ]
  if not found:
    return Scores(np.zeros(0, np.float32), np.zeros(0, bool))
  return jax.tree.map(lambda *x: np.concatenate(x), *found)


def _draw(
  state: RoundState, row_B, is_on_B, logits_BLV, index_B, alternatives: int
) -> jax.Array:
  """Draws for rows (`sampling.draw`); resting ones are greedy, unchanged.

  On a mesh each device draws for its part of the rows, of which it has logits.
  Returns all in one int32 array [2 + N, B], for `InFlight`: tokens, their
  log-probabilities, and the likeliest tokens.
  """
  count = len(row_B)
  row_B, is_on_B, index_B = map(collectives.own_part, (row_B, is_on_B, index_B))
  settings = jax.tree.map(lambda all_R: all_R[row_B], state.settings)
  settings = settings._replace(
    temperature_B=jnp.where(is_on_B, settings.temperature_B, 0),
    penalizes_B=settings.penalizes_B & is_on_B,
  )
  logits_BV = logits_BLV.reshape(len(row_B), -1).astype(jnp.float32)
  penalized_BV = penalties.apply(logits_BV, settings, state.texts, row_B)
  token_B, own_B = sampling_lib.draw(logits_BV, settings, index_B, penalized_BV)
  drawn_NB = jnp.stack([token_B, _bits(own_B)])
  if alternatives:
    likeliest_NB = _likeliest(logits_BV, alternatives)
    drawn_NB = jnp.concatenate([drawn_NB, likeliest_NB])
  return collectives.join_parts(drawn_NB, count)


def _likeliest(logits_BV, count: int) -> jax.Array:
  """Returns the likeliest tokens and their log-probabilities, int32 [2K, B]."""
  found = alternatives_lib.find(logits_BV, count)
  return jnp.concatenate([found.token_NK.T, _bits(found.log_probability_NK).T])


def _bits(x: jax.Array) -> jax.Array:
  """Returns float32 as int32 of the same bits."""
  return lax.bitcast_convert_type(x, jnp.int32)


def _scores(logits_LV, next_L, alternatives: int) -> Scores:
  chosen_L = jnp.take_along_axis(logits_LV, next_L[:, None], axis=1)[:, 0]
  likeliest = None
  if alternatives:
    likeliest = alternatives_lib.find(logits_LV, alternatives)
  return Scores(
    chosen_L - jax.nn.logsumexp(logits_LV, axis=-1),
    jnp.argmax(logits_LV, axis=-1) == next_L,
    likeliest,
  )
