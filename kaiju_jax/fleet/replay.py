"""Replays frozen traffic through caches of several sizes, without a model."""

from collections.abc import Callable
from collections.abc import Mapping
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

CACHES = 'points', 'lru', 'blocks', 'foresight'
# Why a request may miss: what it is, or how long its chat was left alone.
CAUSES = (
  'first turn',
  'first seen',
  'fork',
  'after 4 hours',
  'after 10 minutes',
  'within 10 minutes',
)


class Row(NamedTuple):
  """Hit rates of caches of equal bytes.

  The caches are the engine's prefix tree ('points'), the same tree that evicts
  the least recently used point ('lru') or knows the trace ('foresight'), and
  pages as entries of their own ('blocks').
  """

  fraction: float  # The caches' bytes over those that the oracle fills.
  memory: float  # Bytes of each cache.
  # By cache, the fraction of all prompt tokens that it had.
  rates: Mapping[str, float]
  # By cache and cause, what it lacked of the oracle's hits, as a fraction of
  # all of these.
  missing: Mapping[str, Mapping[str, float]]


class Result(NamedTuple):
  """The replay of one trace."""

  tokens: int  # Tokens of all prompts.
  oracle: float  # Fraction of them that the oracle had.
  memory: float  # Bytes that the oracle filled.
  causes: Mapping[str, int]  # How many requests have each of CAUSES.
  rows: tuple[Row, ...]  # One per fraction.


def sizes_of(config: model_config.ModelConfig) -> caches.CacheSizes:
  """Returns the sizes of a model's pages.

  Raises:
    ValueError: the model lacks global layers, or local ones of one window.
  """
  pools = paging.pools(config.layers(), 1, config.max_length)
  if set(pools) != {prefix_tree.GLOBAL, prefix_tree.LOCAL}:
    raise ValueError(
      f'the model has layers of {sorted(pools)}; the replay compares caches of'
      ' models with global ones and local ones of one window.'
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
  return caches.CacheSizes(paging.PAGE, window, page_bytes, config.max_length)


def replay(
  requests: Sequence[traffic_lib.Request],
  sizes: caches.CacheSizes,
  fractions: Sequence[float],
  local: float | None = None,
  noted: Callable[[str], None] = lambda what: None,
  chosen: Sequence[str] = CACHES,
) -> Result:
  """Serves a trace from the oracle and from caches of fractions of its bytes.

  Args:
    sizes: sizes of the model's pages.
    fractions: fractions of the oracle's bytes.
    local: the fraction of the tree's bytes for local pages; None for the
      default.
    noted: receives the name of each cache whose replay is complete.
    chosen: the caches to serve it from.
  """
  most, memory = _serve_oracle(requests, sizes)
  causes, tokens = find_causes(requests), sum(x.length for x in requests)
  noted('oracle')
  rows = []
  for fraction in fractions:
    size, rates, missing = fraction * memory, {}, {}
    for name in chosen:
      hits = _serve(requests, _make(name, requests, sizes, size, local))
      rates[name] = sum(hits) / tokens
      missing[name] = dict.fromkeys(CAUSES, 0.0)
      for cause, had, hit in zip(causes, most, hits):
        missing[name][cause] += (had - hit) / sum(most)
      noted(f'{name} at {fraction:g}')
    rows.append(Row(fraction, size, rates, missing))
  counts = {cause: causes.count(cause) for cause in CAUSES}
  return Result(tokens, sum(most) / tokens, memory, counts, tuple(rows))


def _make(name: str, requests, sizes: caches.CacheSizes, memory: float, local):
  if name == 'blocks':
    return caches.Blocks(sizes, memory)
  if name == 'foresight':
    return foresight.Foresight(requests, sizes, memory, local)
  lru = caches.least_recently_used
  policy = {'make_policy': lru} if name == 'lru' else {}
  return caches.Points(sizes, memory, local, **policy)


def oracle_bytes(
  requests: Sequence[traffic_lib.Request], sizes: caches.CacheSizes
) -> float:
  """Returns the bytes that a trace fills in a cache that keeps everything."""
  return _serve_oracle(requests, sizes)[1]


def _serve_oracle(
  requests, sizes: caches.CacheSizes
) -> tuple[list[int], float]:
  """Returns what the oracle had of each prompt, and the bytes that it fills."""
  oracle = caches.Oracle()
  most = _serve(requests, oracle)
  return most, oracle.tokens * sizes.token_bytes


def find_causes(requests: Sequence[traffic_lib.Request]) -> list[str]:
  """Returns why a cache may miss each request, one of CAUSES.

  A chat that began before the trace is 'first seen' with a history.
  """
  latest, found = {}, []
  for one in requests:
    away = one.seconds - latest.get(one.session, math.nan)
    latest[one.session] = one.seconds
    if one.kind == 'fork':
      found.append('fork')
    elif math.isnan(away):
      is_first = len(one.prompt) <= 3
      found.append('first turn' if is_first else 'first seen')
    elif away > 4 * 3600:
      found.append('after 4 hours')
    else:
      found.append(f'{"after" if away > 600 else "within"} 10 minutes')
  return found


def _serve(requests: Sequence[traffic_lib.Request], cache) -> list[int]:
  return [cache.serve(request) for request in requests]


def prefix_hit_rates(
  sizes: caches.CacheSizes, prefix: int, histories: Sequence[int]
) -> list[float]:
  """Returns the hit rates of turns where only characters' prefixes are cached.

  Source 003 gives 60 % for 4 thousand tokens of history behind a prefix of 6
  thousand tokens, 37.5 % for 10 thousand, and nearly all of a first turn.

  Args:
    sizes: sizes of the model's pages.
    prefix: tokens of the character's prefix.
    histories: tokens behind the prefix, one turn per entry.
  """
  rng = np.random.default_rng(0)
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


def share(row: Row, result: Result) -> dict[str, float]:
  """Returns by cache its hits over the oracle's."""
  return {
    name: rate / result.oracle if result.oracle else math.nan
    for name, rate in row.rates.items()
  }
