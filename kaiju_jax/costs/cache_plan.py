"""Plans a cache of keys and values within a budget of memory.

A cache that has room for every text at its full length would take most of a
machine for a model of 40,960 positions. Few texts are that long, so the pages
that remain beside one text of full length are those of texts of `TYPICAL`
tokens, each with its pages of every kind of layer.
"""

import bisect
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
  page: int = paging.PAGE,
  devices: int = 1,
  platform: str = '',
) -> Plan:
  """Returns the cache of at most `texts` texts within a budget.

  Args:
    config: the model's config.
    budget: bytes of the cache.
    texts: texts of full length beyond which no pages are made.
    length: tokens of the longest text; None for the model's max_length, or half
      of what the budget holds, or `LONGEST`, whichever is least.
    extra: slots of each text beyond its tokens, for a beam search.
    page: slots of a page.
    devices: those that share the cache.
    platform: theirs, as JAX names it; no pool has more pages than its kernel
      can address.

  Raises:
    ValueError: not even one text fits.
  """
  most = config.max_length
  sizes = _Sizes(config, extra, page)
  if length is None:
    half = sizes.longest(budget // 2)
    length = min(most, half or sizes.longest(budget), LONGEST)
  whole = sizes.pages(max(length, 1))
  if length < 1 or sizes.bytes(whole) > budget:
    raise ValueError(
      f'length={max(length, 1):,}: one text takes'
      f' {draw(sizes.bytes(whole))}, --cache={draw(budget)} holds'
      f' {sizes.longest(budget):,} tokens.'
    )
  typical = min(length, TYPICAL)
  each = sizes.pages(typical)
  pages = {kind: texts * count for kind, count in whole.items()}
  if sizes.bytes(pages) > budget:
    count = (budget - sizes.bytes(whole)) // sizes.bytes(each)
    pages = {kind: whole[kind] + count * each[kind] for kind in each}
  size = page * config.num_kv_heads * config.head_dim // devices
  for kind, count in pages.items():
    most = paging.cap(config, count, size, platform)
    pages[kind] = max(most, whole[kind])
  return Plan(
    length,
    pages,
    sizes.bytes(pages),
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


class _Sizes(NamedTuple):
  """The pages of texts, and the bytes of pages."""

  config: model_config.ModelConfig
  extra: int
  page: int

  def pages(self, length: int) -> dict[str, int]:
    """Returns one text's pages of each kind."""
    pools = self._pools(length, extra=self.extra)
    return {kind: pool.pages for kind, pool in pools.items()}

  def bytes(self, pages: Mapping[str, int]) -> int:
    """Returns the bytes of pages, without tables."""
    return paging.page_bytes(self.config, self._pools(1, pages=pages))

  def longest(self, budget: int) -> int:
    """Returns the most tokens of one text; 0 if none fits."""
    return bisect.bisect_right(
      range(1, self.config.max_length + 1),
      budget,
      key=lambda length: self.bytes(self.pages(length)),
    )

  def _pools(self, length: int, **sizes) -> dict[str, paging.Pool]:
    return paging.pools(
      *(self.config.layers(), 1, length),
      page=self.page,
      heads=self.config.num_kv_heads,
      **sizes,
    )
