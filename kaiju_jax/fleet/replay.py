"""Replays frozen traffic through caches of several sizes, without a model."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import math
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.fleet import caches
from kaiju_jax.fleet import foresight
from kaiju_jax.fleet import traffic as traffic_lib
from kaiju_jax.model import config as model_config
from kaiju_jax.model import paging


class Row(NamedTuple):
  """Hit rates of caches of equal bytes.

  Attributes:
    fraction: the caches' bytes over those that the oracle fills.
    memory: bytes of each cache.
    points: fraction of all prompt tokens that the prefix tree had.
    blocks: the same for pages as entries of their own.
    foresight: the same for the prefix tree that knows the trace.
  """

  fraction: float
  memory: float
  points: float
  blocks: float
  foresight: float


class Result(NamedTuple):
  """The replay of one trace.

  Attributes:
    tokens: tokens of all prompts.
    oracle: fraction of them that the oracle had.
    memory: bytes that the oracle filled.
    rows: one per fraction.
  """

  tokens: int
  oracle: float
  memory: float
  rows: tuple[Row, ...]


def sizes_of(config: model_config.ModelConfig) -> caches.Sizes:
  """Returns the sizes of a model's pages.

  Raises:
    ValueError: the model lacks local or global layers.
  """
  pools = paging.pools(config.layers(), 1, config.max_length)
  if set(pools) != {prefix_tree.GLOBAL, prefix_tree.LOCAL}:
    raise ValueError(
      'the model has layers of one kind alone; the replay compares caches of'
      ' models with local and global ones.'
    )
  # The bytes of a page are those that one more page adds to a pool.
  page_bytes = {}
  for kind in pools:
    one, two = (
      paging.bytes_of(
        config, {kind: dataclasses.replace(pools[kind], pages=count)}, 0
      )
      for count in (1, 2)
    )
    page_bytes[kind] = two - one
  window = pools[prefix_tree.LOCAL].window
  return caches.Sizes(paging.PAGE, window, page_bytes, config.max_length)


def replay(
  requests: Sequence[traffic_lib.Request],
  sizes: caches.Sizes,
  fractions: Sequence[float],
  local: float | None = None,
  noted: Callable[[str], None] = lambda what: None,
) -> Result:
  """Serves a trace from the oracle and from caches of fractions of its bytes.

  Args:
    requests: the trace.
    sizes: sizes of the model's pages.
    fractions: fractions of the oracle's bytes.
    local: the fraction of the tree's bytes for local pages; None for the
      default.
    noted: receives the name of each cache whose replay is complete.
  """
  oracle = caches.Oracle()
  most = tally(requests, oracle)
  memory = oracle.tokens * sizes.token_bytes
  noted('oracle')
  rows = []
  for fraction in fractions:
    bytes_held = fraction * memory
    rates = []
    for name, cache in (
      ('points', caches.Points(sizes, bytes_held, local)),
      ('blocks', caches.Blocks(sizes, bytes_held)),
      (
        'foresight',
        foresight.Foresight(requests, sizes, bytes_held, local),
      ),
    ):
      rates.append(tally(requests, cache).rate)
      noted(f'{name} at {fraction:g}')
    rows.append(Row(fraction, fraction * memory, *rates))
  return Result(most.tokens, most.rate, memory, tuple(rows))


def tally(requests: Sequence[traffic_lib.Request], cache) -> caches.Tally:
  """Serves all requests; returns how many prompt tokens the cache had."""
  found = caches.Tally()
  for request in requests:
    tokens = sum(len(piece.tokens) for piece in request.prompt)
    found.add(cache.serve(request), tokens)
  return found


def prefix_hit_rates(
  sizes: caches.Sizes, prefix: int, histories: Sequence[int], seed: int = 0
) -> list[float]:
  """Returns the hit rates of turns where only characters' prefixes are cached.

  Source 003 gives 60 % for 4 thousand tokens of history behind a prefix of 6
  thousand tokens, 37.5 % for 10 thousand, and nearly all of a first turn.

  Args:
    sizes: sizes of the model's pages.
    prefix: tokens of the character's prefix.
    histories: tokens behind the prefix, one turn per entry.
    seed: seed of the random tokens.
  """
  rng = np.random.default_rng(seed)
  pieces = [
    traffic_lib.Piece(number, rng.integers(2**15, size=size, dtype=np.int32))
    for number, size in enumerate((prefix, 1, 1, *histories))
  ]
  memory = 2 * sizes.token_bytes * (prefix + 2 * max(histories) + 4096)
  cache = caches.Points(sizes, memory, between_turns=False, local=0.5)
  rates = []
  # The first request fills the cache and is not counted.
  for session, own in enumerate([pieces[1], *pieces[3:]]):
    request = traffic_lib.Request(
      0.0, 0, session, 'turn', (pieces[0], own), pieces[2]
    )
    hits = cache.serve(request)
    if session:
      rates.append(hits / (prefix + len(own.tokens)))
  return rates


def share(row: Row, result: Result) -> tuple[float, float, float]:
  """Returns the hits of points, blocks and foresight over the oracle's."""
  rates = row.points, row.blocks, row.foresight
  if not result.oracle:
    return (math.nan,) * len(rates)
  return tuple(rate / result.oracle for rate in rates)
