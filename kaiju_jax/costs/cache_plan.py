"""Plans a cache of keys and values within a budget of memory.

A cache that has room for every text at its full length would take most of a
machine for a model of 40,960 positions. Few texts are that long, so the pages
that remain beside one text of full length are those of texts of `TYPICAL`
tokens, each with its pages of every kind of layer.
"""

from collections.abc import Mapping
import re
from typing import NamedTuple

from kaiju_jax.costs import footprint
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import paging

# Tokens of a conversation; our guess.
TYPICAL = 2048
# The longest text for which room is kept unasked; our guess.
LONGEST = 32_768
_UNITS = {'KiB': 2**10, 'MiB': 2**20, 'GiB': 2**30, 'TiB': 2**40}


class Plan(NamedTuple):
  """The size of a cache."""

  length: int  # Tokens of the longest text.
  pages: dict[str, int]  # Pages of each kind's pool.
  size: int
  texts: int  # How many texts of `typical` tokens they hold.
  typical: int  # `TYPICAL`, or `length` if that is less.
  token_bytes: float  # Bytes per token of such a text.
  plain_bytes: float  # The same in bfloat16.


def plan(
  config: model_config.ModelConfig,
  budget: int,
  texts: int,
  length: int | None = None,
  extra: int = 0,
) -> Plan:
  """Returns the cache of at most `texts` texts within a budget.

  Args:
    config: the model's config.
    budget: bytes of the cache.
    texts: texts of full length beyond which no pages are made.
    length: tokens of the longest text; None for the model's max_length, or half
      of what the budget holds, or `LONGEST`, whichever is least.
    extra: slots of each text beyond its tokens, for a beam search.

  Raises:
    ValueError: not even one text fits.
  """
  most = config.max_length
  if length is None:
    half = _longest(config, budget // 2, extra)
    length = min(most, half or _longest(config, budget, extra), LONGEST)
  whole = _pages(config, max(length, 1), extra)
  if length < 1 or _bytes(config, whole) > budget:
    raise ValueError(
      f'length={max(length, 1):,}: one text takes'
      f' {draw(_bytes(config, whole))}, --cache={draw(budget)} holds'
      f' {_longest(config, budget, extra):,} tokens.'
    )
  typical = min(length, TYPICAL)
  each = _pages(config, typical, extra)
  pages = {kind: texts * count for kind, count in whole.items()}
  if _bytes(config, pages) > budget:
    left = budget - _bytes(config, whole)
    count = left // _bytes(config, each)
    pages = {kind: whole[kind] + count * each[kind] for kind in each}
  return Plan(
    length,
    pages,
    _bytes(config, pages),
    min(pages[kind] // count for kind, count in each.items()),
    typical,
    footprint.kv_caches(config, typical)[0].per_token,
    layers_lib.kv_bytes(
      config.layers(), typical, config.head_dim, config.num_kv_heads, 2, 0
    )
    / typical,
  )


def describe(plan: Plan) -> str:
  """Returns a line for the user."""
  return (
    f'Keys and values: {plan.token_bytes:,.0f} bytes per token (bfloat16:'
    f' {plan.plain_bytes:,.0f}). The cache of {draw(plan.size)} holds'
    f' {plan.texts:,} conversations of {plan.typical:,} tokens; one has at most'
    f' {plan.length:,} (--cache, --length).'
  )


def parse(text: str, flag: str = '--cache') -> int:
  """Returns the bytes of a size such as '2GiB'.

  Raises:
    ValueError: the text is no such size.
  """
  found = re.fullmatch(r'(\d{1,9}(?:\.\d{1,9})?) ?([KMGT]iB)', text)
  if not found or not float(found[1]):
    raise ValueError(
      f'{flag}={text}: must be a size in KiB, MiB, GiB or TiB, such as 2GiB.'
    )
  return int(float(found[1]) * _UNITS[found[2]])


def draw(size: float) -> str:
  """Returns a number of bytes in the largest unit that it fills."""
  for unit, count in reversed(_UNITS.items()):
    if size >= count:
      return f'{size / count:.3g} {unit}'
  return f'{size:.0f} bytes'


def _pages(
  config: model_config.ModelConfig, length: int, extra: int
) -> dict[str, int]:
  """Returns one text's pages of each kind."""
  pools = paging.pools(
    config.layers(), 1, length, extra=extra, heads=config.num_kv_heads
  )
  return {kind: pool.pages for kind, pool in pools.items()}


def _bytes(config: model_config.ModelConfig, pages: Mapping[str, int]) -> int:
  """Returns the bytes of pages, without tables."""
  pools = paging.pools(
    config.layers(), 1, 1, pages=pages, heads=config.num_kv_heads
  )
  return paging.page_bytes(config, pools)


def _longest(config: model_config.ModelConfig, budget: int, extra: int) -> int:
  """Returns the most tokens of one text; 0 if none fits."""
  low, high = 0, config.max_length
  while low < high:
    middle = (low + high + 1) // 2
    if _bytes(config, _pages(config, middle, extra)) <= budget:
      low = middle
    else:
      high = middle - 1
  return low
