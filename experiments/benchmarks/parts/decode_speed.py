"""Times prefill and decoding of this project, for `benchmarks.decode`.

A decoding step is one call with one token per row, greedy, its argmax drawn on
the device; prefill is the chunks of whole prompts and the last token's argmax.
"""

from collections.abc import Callable
import functools
import statistics
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer


class Times(NamedTuple):
  """Seconds of each run.

  Attributes:
    prefill: seconds of the whole batch's prompts.
    step: seconds of one decoding step, one token for each row; each is the
      median of a run's steps.
    cache_bytes: that the cache takes.
  """

  prefill: tuple[float, ...]
  step: tuple[float, ...]
  cache_bytes: int


def times(
  params,
  config: model_config.ModelConfig,
  batch: int,
  length: int,
  *,
  steps: int = 16,
  runs: int = 3,
  chunk: int = 512,
) -> Times:
  """Returns what a model takes, after one run that does not count.

  Args:
    params: float32 master weights, or an export.
    config: the model's config.
    batch: rows, each with other random tokens.
    length: tokens of a prompt, and so the context of the first step.
    steps: decoding steps in a run.
    runs: that count.
    chunk: tokens per row in one call of the prefill.
  """
  decoder = decoder_lib.Decoder(
    params, config, rows=batch, length=length + steps
  )
  run = runner(decoder, length, steps, chunk)
  measured = [run() for _ in range(1 + runs)]
  return Times(*zip(*measured[1:]), decoder.cache_bytes)


def runner(
  decoder: decoder_lib.Decoder,
  length: int,
  steps: int,
  chunk: int = 512,
  clock: Callable[[], float] = time.perf_counter,
) -> Callable[[], tuple[float, float]]:
  """Returns a function that times one prefill and the median step after it.

  Its first call compiles. The arguments are those of `times`; the decoder has a
  row for each text of the batch. `clock` returns seconds.
  """
  call = decoder.jit(
    functools.partial(greedy, decoder.network), donate_argnums=1
  )
  rng = np.random.default_rng(0)
  shape = decoder.rows, length
  tokens_BL = rng.integers(0, decoder.tokens, shape, np.int32)
  return lambda: _run(decoder, call, tokens_BL, steps, chunk, clock)


def greedy(network, params, cache, rings, row_B, tokens_BL):
  """Returns each row's likeliest next token [B, 1], and the cache."""
  count_B = jnp.full(row_B.shape, tokens_BL.shape[1], jnp.int32)
  hidden_BLD, cache = extend.text(
    network, params, cache, rings, row_B, tokens_BL, count_B
  )
  logits_BLV = extend.logits(network, params, hidden_BLD[:, -1:])
  return sampling.likeliest(logits_BLV[:, 0])[:, None], cache


def _run(decoder, call, tokens_BL, steps: int, chunk: int, clock):
  """Returns the seconds of one prefill and of the median step after it."""
  rows = [decoder.open() for _ in tokens_BL]
  row_B = jnp.asarray(rows, jnp.int32)
  length = tokens_BL.shape[1]
  started = clock()
  for begin in range(0, length, chunk):
    part_BL = tokens_BL[:, begin : begin + chunk]
    appends = dict.fromkeys(rows, part_BL.shape[1])
    token_B1 = decoder.run(call, row_B, part_BL, appends=appends)
  np.asarray(token_B1)
  prefill = clock() - started
  taken = []
  for _ in range(steps):
    started = clock()
    token_B1 = decoder.run(
      call, row_B, token_B1, appends=dict.fromkeys(rows, 1)
    )
    np.asarray(token_B1)
    taken.append(clock() - started)
  for row in rows:
    decoder.close(row)
  return prefill, statistics.median(taken)


def time_uncached(
  params, config: model_config.ModelConfig, batch: int, length: int, runs: int
) -> tuple[float, ...]:
  """Returns the seconds of whole forward passes, one per token without a cache.

  Args:
    params: float32 master weights.
    config: the model's config.
    batch: rows.
    length: tokens of each.
    runs: that count, after one that does not.
  """
  model = transformer.Transformer(config)
  row = visibility_lib.causal(length)
  visibility = visibility_lib.concatenate([row] * batch)

  @jax.jit
  def next_token(params, tokens_BL, visibility):
    hidden_BLD = model.apply(
      {'params': params}, tokens_BL, visibility, method='hidden'
    )
    logits_BLV = model.apply(
      {'params': params}, hidden_BLD[:, -1:], method='logits'
    )
    return jnp.argmax(logits_BLV, axis=-1)

  tokens_BL = np.zeros((batch, length), np.int32)
  taken = []
  for _ in range(1 + runs):
    started = time.perf_counter()
    np.asarray(next_token(params, tokens_BL, visibility))
    taken.append(time.perf_counter() - started)
  return tuple(taken[1:])
