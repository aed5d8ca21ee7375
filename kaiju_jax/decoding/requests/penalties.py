r"""Changes logits by what a row's text holds, and by a request's own biases.

    logit += logit_bias                                   OpenAI
    logit  = logit / p if logit > 0 else logit · p        repetition_penalty p,
        of tokens among the text's last `repeat_last_n` (CTRL, arXiv 1909.05858)
    logit -= frequency_penalty · count + presence_penalty · (count > 0)
        count: how often the reply has drawn the token    OpenAI
    logit -= dry_multiplier · dry_base^(n - dry_allowed_length)
        if n >= dry_allowed_length                        DRY

n is the length of the longest end of the text that stood before, followed by
the token (p-e-w, text-generation-webui #5677). As in llama.cpp, both lie in the
last `dry_penalty_last_n` tokens, the repeated end holds no breaker, and
breakers are never penalized. Breakers are control tokens, such as those of a
chat template, and tokens whose text holds a string of `dry_sequence_breakers`.
A string that takes several tokens breaks nothing, unlike in llama.cpp.

The repetition penalty and DRY see prompt and reply, as in llama.cpp; the other
two the reply alone, by OpenAI's definition. A row remembers its last `WINDOW`
tokens, and for each lag how many tokens repeat at the end of its text. A new
token extends or ends these runs, so that n takes no search. Where no row of a
call has a penalty, its logits are left alone.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import functools
import re
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib

# The last tokens that a row remembers (our guess).
WINDOW = 1024
# The most entries of a `logit_bias`, as OpenAI's.
BIASES = 300
BREAKERS = ('\n', ':', '"', '*')  # llama.cpp's.
# The most strings that break sequences, and characters of each.
STRINGS, LENGTH = 16, 40
_BEYOND = 2**31 - 1  # Beyond any vocabulary: a scatter drops it.
# Texts of control tokens, which most tokenizers decode to nothing.
_CONTROL = r'\A\Z|[\x00-\x08\x0b-\x1f\x7f]'
_BREAKS, _DRAWN = 2, 4
# Bounds DRY's power, so that no logit becomes NaN.
_MOST = 1e9


def is_used(sampling: Any) -> bool:
  """Returns whether a `sampling.Sampling` changes logits before any filter."""
  is_repetition = sampling.repetition_penalty != 1 and sampling.repeat_last_n
  others = sampling.frequency_penalty, sampling.presence_penalty
  return any(
    (is_repetition, *others, sampling.logit_bias, sampling.dry_multiplier)
  )


def check_biases(biases: Any) -> tuple[tuple[int, float], ...]:
  """Returns {token: bias} as sorted pairs; TypeError, ValueError."""
  if not isinstance(biases, Mapping | tuple):
    raise TypeError(f'logit_bias={biases!r:.80}: must be {{token: bias}}.')
  if len(biases) > BIASES:
    raise ValueError(f'logit_bias has {len(biases)} entries: at most {BIASES}.')
  pairs = dict(biases).items()
  for token, bias in pairs:
    is_token = type(token) is int and 0 <= token < _BEYOND
    if not (is_token and type(bias) in (int, float) and -100 <= bias <= 100):
      raise ValueError(
        f'logit_bias[{token!r:.40}]={bias!r:.40}: must be a number in -100…100'
        ' of a token, an integer from 0.'
      )
  return tuple(sorted(pairs))


def check_breakers(strings: Any) -> tuple[str, ...]:
  """Returns the strings that break sequences; TypeError, ValueError."""
  is_list = isinstance(strings, list | tuple) and len(strings) <= STRINGS
  if not is_list or not all(
    isinstance(x, str) and 1 <= len(x) <= LENGTH for x in strings
  ):
    raise ValueError(
      f'dry_sequence_breakers={strings!r:.80}: must be at most {STRINGS}'
      f' strings of 1…{LENGTH} characters.'
    )
  return tuple(strings)


CHECKS = {'logit_bias': check_biases, 'dry_sequence_breakers': check_breakers}


def pack_biases(
  biases: Sequence[Sequence[tuple[int, float]]],
) -> dict[str, Any]:
  """Returns the fields of `sampling.Settings` for biases of B rows."""
  shape = len(biases), BIASES
  token_BK = np.full(shape, _BEYOND, np.int32)
  bias_BK = np.zeros(shape, np.float32)
  for b, pairs in enumerate(biases):
    if pairs:
      token_BK[b, : len(pairs)], bias_BK[b, : len(pairs)] = zip(*pairs)
  return {'bias_token_BK': token_BK, 'bias_BK': bias_BK}


class Texts(NamedTuple):
  """What penalties use of the text of each of R rows, int32."""

  # Of each token: 1 if the prompt holds it, 2 if it is a breaker, and 4 for
  # each time that it was drawn.
  tally_RV: Any
  # The last tokens, the newest first; -1 beyond the text.
  recent_RW: Any
  # Of lag w > 0: how many tokens of the text's end, back to a breaker, equal
  # those w before them.
  run_RW: Any


def read(
  text_L: np.ndarray, prompt: int, breakers: np.ndarray, vocab_size: int
) -> Texts:
  """Returns the `Texts` of one row, numpy, without R.

  Args:
    text_L: int32, its tokens so far.
    prompt: how many of them are the prompt's.
    breakers: int32, the tokens that break repeated sequences.
    vocab_size: V.
  """
  tally_V = _DRAWN * np.bincount(text_L[prompt:], minlength=vocab_size)
  tally_V[text_L[:prompt]] |= 1
  tally_V[breakers] |= _BREAKS
  last_L = text_L[: -WINDOW - 1 : -1]
  count = len(last_L)
  recent_W, run_W = np.full(WINDOW, -1, np.int32), np.zeros(WINDOW, np.int32)
  recent_W[:count] = last_L
  if count:
    before_L = np.append(last_L, np.full(count, -1))
    before_LL = np.lib.stride_tricks.sliding_window_view(before_L, count)
    # Each lag but 0 finds an entry that differs, at the latest beyond the text.
    run_W[:count] = (before_LL[:count] == last_L).argmin(axis=1)
    is_breaker_L = np.append(tally_V[last_L] & _BREAKS, 1) > 0
    run_W = np.minimum(run_W, is_breaker_L.argmax().astype(np.int32))
  return Texts(tally_V.astype(np.int32), recent_W, run_W)


def append(
  texts: Texts, row_B: jax.Array, token_B: jax.Array, is_on_B: jax.Array
) -> Texts:
  """Returns the texts of all rows, where rows that are on got a drawn token."""
  beyond = texts.tally_RV.shape[1]  # A scatter drops it.
  tally_RV = texts.tally_RV.at[row_B, jnp.where(is_on_B, token_B, beyond)]
  is_breaker_B = (texts.tally_RV[row_B, token_B] & _BREAKS) > 0
  recent_BW, run_BW = texts.recent_RW[row_B], texts.run_RW[row_B]
  longer_BW = jnp.concatenate([token_B[:, None], recent_BW[:, :-1]], axis=1)
  goes_on_BW = (longer_BW == token_B[:, None]) & ~is_breaker_B[:, None]
  grown_BW = jnp.where(goes_on_BW, run_BW + 1, 0)
  is_on_B1 = is_on_B[:, None]
  return Texts(
    tally_RV.add(_DRAWN, mode='drop'),
    texts.recent_RW.at[row_B].set(jnp.where(is_on_B1, longer_BW, recent_BW)),
    texts.run_RW.at[row_B].set(jnp.where(is_on_B1, grown_BW, run_BW)),
  )


def apply(
  logits_BV: jax.Array, settings: Any, texts: Texts, row_B: jax.Array
) -> jax.Array:
  """Returns the logits to draw from.

  Args:
    logits_BV: float32.
    settings: the B rows' settings (`sampling.Settings`).
    texts: those of all rows.
    row_B: int32, the row of each of the logits.
  """

  def changed():
    one = Texts(*(x[row_B] for x in texts))
    rows_B1 = jnp.arange(len(row_B))[:, None]
    x_BV = logits_BV.at[rows_B1, settings.bias_token_BK].add(
      settings.bias_BK, mode='drop'
    )
    x_BV = _penalize_tokens(x_BV, settings, one, rows_B1)
    x_BV = _penalize_sequences(x_BV, settings, one, rows_B1)
    return jnp.where(settings.penalizes_B[:, None], x_BV, logits_BV)

  is_any = jnp.any(settings.penalizes_B)
  return lax.cond(is_any, changed, lambda: logits_BV)


def _penalize_tokens(x_BV, settings, texts: Texts, rows_B1) -> jax.Array:
  """Applies the repetition, frequency and presence penalties."""
  last_B1 = settings.repeat_last_n_B[:, None]
  is_near_BW = jnp.arange(WINDOW)[None] < last_B1
  is_near_BW &= texts.recent_RW >= 0
  near_BW = jnp.where(is_near_BW, texts.recent_RW, x_BV.shape[1])
  is_seen_BV = (last_B1 < 0) & ((texts.tally_RV & ~_BREAKS) > 0)
  is_seen_BV = is_seen_BV.at[rows_B1, near_BW].set(True, mode='drop')
  penalty_B1 = settings.repetition_penalty_B[:, None]
  lower_BV = jnp.where(x_BV > 0, x_BV / penalty_B1, x_BV * penalty_B1)
  x_BV = jnp.where(is_seen_BV, lower_BV, x_BV)
  count_BV = (texts.tally_RV // _DRAWN).astype(jnp.float32)
  x_BV -= settings.frequency_penalty_B[:, None] * count_BV
  return x_BV - settings.presence_penalty_B[:, None] * (count_BV > 0)


def _penalize_sequences(x_BV, settings, texts: Texts, rows_B1) -> jax.Array:
  """Applies DRY."""
  # By lags from 1 on: what is repeated, and the token that followed it.
  room_BW = settings.dry_penalty_last_n_B[:, None] - jnp.arange(1, WINDOW)[None]
  length_BW = jnp.minimum(texts.run_RW[:, 1:], room_BW)
  token_BW = texts.recent_RW[:, :-1]
  tally_BW = jnp.take_along_axis(texts.tally_RV, token_BW, axis=1)
  exponent_BW = length_BW - settings.dry_allowed_length_B[:, None]
  is_repeat_BW = (exponent_BW >= 0) & ((tally_BW & _BREAKS) == 0)
  power_BW = settings.dry_base_B[:, None] ** exponent_BW.astype(jnp.float32)
  penalty_BW = jnp.minimum(power_BW, _MOST) * settings.dry_multiplier_B[:, None]
  low_BW = jnp.take_along_axis(x_BV, token_BW, axis=1) - penalty_BW
  # Of several repetitions the longest lowers most.
  at_BW = jnp.where(is_repeat_BW, token_BW, x_BV.shape[1])
  return x_BV.at[rows_B1, at_BW].min(low_BW, mode='drop')


@functools.lru_cache(maxsize=64)
def find_breakers(
  tokenizer: tokenizer_lib.Tokenizer | None, strings: tuple[str, ...]
) -> np.ndarray:
  """Returns the control tokens, and those whose text holds one of `strings`."""
  if tokenizer is None:
    return np.zeros(0, np.int32)
  pattern = re.compile('|'.join([_CONTROL, *map(re.escape, strings)]))
  texts = _read_vocabulary(tokenizer)
  found = [token for token, text in enumerate(texts) if pattern.search(text)]
  return np.array(found, np.int32)


@functools.lru_cache(maxsize=8)
def _read_vocabulary(tokenizer: tokenizer_lib.Tokenizer) -> list[str]:
  tokens = range(tokenizer.vocab_size)
  return [tokenizer.spell(x).decode(errors='replace') for x in tokens]
