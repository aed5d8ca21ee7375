"""Times prefill and decoding of this project.

A decoding step is one call with one token per row, greedy, its argmax drawn on
the device; prefill is the chunks of whole prompts and the last token's argmax.
"""

from collections.abc import Callable
import functools
import statistics
import time

import jax.numpy as jnp
import numpy as np

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.requests import sampling


def runner(
  decoder: decoder_lib.Decoder,
  length: int,
  steps: int,
  chunk: int = 512,
  clock: Callable[[], float] = time.perf_counter,
) -> Callable[[], tuple[float, float]]:
  """Returns a function that times one prefill and the median step after it.

  Its first call compiles.

  Args:
    decoder: has a row for each text of the batch, of random tokens.
    length: tokens of a prompt, and so the context of the first step.
    steps: decoding steps in a run.
    chunk: tokens per row in one call of the prefill.
    clock: returns seconds.
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
