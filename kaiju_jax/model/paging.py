"""The sizes of a paged KV cache: arithmetic that allocates nothing.

Keys and values lie in pages of S slots. Each kind of layer has a pool, which
holds the pages of every layer that makes keys and values. Kinds are 'global'
and 'local', or 'local128+4' and the like where local layers have several
windows or sinks. A row of the cache holds one sequence. The row's table names
one page per S logical slots:

    global    length tokens            ceil((length + extra) / S) pages
    local     the sinks, and the       ceil(sinks / S) pinned pages, and
              last window − 1          ceil((window + S − 2 + extra) / S)
              from before a chunk      that rotate; no more than a global row

A local row drops whole pages, so its first rotating page keeps up to S − 1
tokens that have left the window. Pinned pages are the text's first and stay.
With U heads of keys and values, the pool has U pages for each page that a table
names (`kv_heads.py`).

On a mesh of N devices each has U/N heads of every page. With fewer heads than
devices, each run of W = N/U neighbours shares a head, and each of them has a
stripe of every page: S/W of its slots. Page numbers, tables and rows are those
of one device.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
from typing import Any

from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib

# Slots per page. Smaller pages waste less in a row's last page; larger ones
# make shorter tables and longer reads. Our guess, until a device is measured.
PAGE = 64
# The least slots of a stripe of int8 pages: those of a TPU's tile.
TPU_SLOTS = 32
# A GPU's kernel cannot address a pool of so many codes or up to twice as many:
# until then offsets have 32 bits (`kernels/paged_decode/blocks.py`).
GPU_CODES = 2**31


@dataclasses.dataclass(frozen=True)
class Pool:
  """The size of the pool of one kind of layer."""

  owners: tuple[int, ...]  # Indices of the layers that make keys and values.
  # The layers' window in positions; None if they see everything.
  window: int | None
  page: int  # S, slots per page.
  row_pages: int  # N, pages of a row's table.
  pages: int  # P, pages of the whole pool.
  heads: int = 1  # U, heads of keys and values of a device.
  sinks: int = 0  # The first tokens of a text that the layers see as well.
  stripes: int = 1  # W, devices that share a page.

  @property
  def pinned(self) -> int:
    """The first pages of a row's table, which hold the sinks and stay."""
    return min(-(-self.sinks // self.page), self.row_pages)

  @property
  def pinned_slots(self) -> int:
    """The slots of the pinned pages."""
    return self.pinned * self.page

  @property
  def slots(self) -> int:
    """S/W, slots of a page on a device."""
    return self.page // self.stripes

  @property
  def row_slots(self) -> int:
    """M, logical slots of a row."""
    return self.row_pages * self.page

  def turns(self, first: Any, end: Any) -> Any:
    """Returns how many pages leave a row so that it has room up to `end`.

    Args:
      first: by how many positions the row has turned; a number or an array.
      end: one past the last position that the row is to hold; likewise.
    """
    lacking = end - first - self.row_slots
    return (lacking > 0) * -(-lacking // self.page)


def spread(place: Any, first: Any, pinned: int) -> Any:
  """Returns the position in the text of the token in slot `place` of a row.

  With all three in pages it is the index of the page in an entry of a table.

  Args:
    place: numbers of slots, any array.
    first: by how many slots the row has turned.
    pinned: slots that do not turn.
  """
  return place + first * (place >= pinned) if pinned else place + first


def pools(
  layers: Sequence[layers_lib.Layer],
  rows: int,
  length: int,
  *,
  page: int = PAGE,
  extra: int = 0,
  pages: Mapping[str, int] | None = None,
  heads: int = 1,
  devices: int = 1,
) -> dict[str, Pool]:
  """Returns the pool of each kind of layers that the stack has.

  Args:
    layers: the stack.
    rows: sequences that the cache holds at once.
    length: tokens of the longest sequence.
    page: S, slots per page.
    extra: slots per row beyond those of one sequence, for a beam search.
    pages: pages of the pool, by kind; the default lets every row be full at
      once.
    heads: U, heads of keys and values.
    devices: N, devices of the mesh.

  Raises:
    ValueError: an argument is out of range; the message names its value.
  """
  for name, value, least in (
    ('rows', rows, 1),
    ('length', length, 1),
    ('page', page, 1),
    ('extra', extra, 0),
  ):
    if value < least:
      raise ValueError(f'{name}={value}: must be at least {least}.')
  stripes = count_stripes(heads, devices)
  if heads * stripes % devices or devices % stripes:
    raise ValueError(
      f'heads={heads}: must divide the {devices} devices of the mesh or be a'
      ' multiple of them.'
    )
  if page % stripes:
    raise ValueError(
      f'page={page}: must be a multiple of {stripes}, the devices that share'
      ' the slots of a page.'
    )
  kinds: dict[tuple[int | None, int], list[int]] = {}
  for index in layers_lib.owners(layers):
    layer = layers[index]
    kinds.setdefault((layer.window, layer.sinks), []).append(index)
  several = sum(window is not None for window, _ in kinds) > 1
  result = {}
  for (window, sinks), owners in kinds.items():
    kind = 'global' if window is None else 'local'
    row_pages = -(-(length + extra) // page)
    if window is not None:
      if several:
        kind += f'{window}+{sinks}' if sinks else f'{window}'
      ring = -(-max(window + page - 2 + extra, 1) // page)
      row_pages = min(row_pages, -(-sinks // page) + ring)
    count = (pages or {}).get(kind, rows * row_pages)
    if count < row_pages:
      raise ValueError(
        f'pages={dict(pages)}: a {kind} row of {length} tokens has'
        f' {row_pages} pages, so the pool needs at least as many.'
      )
    result[kind] = Pool(
      tuple(owners),
      window,
      page,
      row_pages,
      count,
      max(heads // devices, 1),
      sinks,
      stripes,
    )
  return result


def count_stripes(heads: int, devices: int) -> int:
  """Returns W, the devices that share each of U heads of keys and values."""
  return max(devices // heads, 1)


def choose_page(heads: int, devices: int, platform: str) -> int:
  """Returns the slots of pages that a mesh can share: `PAGE`, or more.

  Args:
    heads: U, heads of keys and values.
    devices: N, devices of the mesh.
    platform: theirs, as JAX names it.
  """
  stripes = count_stripes(heads, devices)
  least = TPU_SLOTS * stripes if platform == 'tpu' and stripes > 1 else 1
  return math.lcm(max(PAGE, least), stripes)


def cap(
  config: model_config.ModelConfig, pages: int, size: int, platform: str
) -> int:
  """Returns how many of a pool's pages the kernel of a platform can address.

  Args:
    config: the model's.
    pages: those that are wanted.
    size: elements of a page's keys on a device.
    platform: as JAX names it.
  """
  is_coded = config.quantization.kv == 'int8'
  if platform != 'gpu' or not is_coded:
    return pages
  is_between = GPU_CODES <= pages * size <= 2 * GPU_CODES
  return (GPU_CODES - 1) // size if is_between else pages


def check_platform(
  config: model_config.ModelConfig, pools: Mapping[str, Pool], platform: str
) -> None:
  """Refuses pools that a platform's kernel cannot read; a ValueError."""
  for kind, pool in pools.items():
    if platform == 'tpu' and pool.stripes > 1 and pool.slots < TPU_SLOTS:
      raise ValueError(
        f'page={pool.page}: must be at least {TPU_SLOTS * pool.stripes} on a'
        f' TPU, because {pool.stripes} devices share its slots and a tile has'
        f' {TPU_SLOTS}.'
      )
    size = pool.heads * pool.slots * config.head_dim
    most = cap(config, pool.pages, size, platform)
    if pool.pages > most:
      raise ValueError(
        f'{kind} pages={pool.pages:,}: must be at most {most:,} on a GPU, or'
        f' more than {2 * GPU_CODES // size:,}: its kernel addresses no pool of'
        ' 2³¹ to 2³² codes.'
      )


def bytes_of(
  config: model_config.ModelConfig, pools: Mapping[str, Pool], rows: int
) -> int:
  """Returns the bytes that a cache of `rows` rows and its tables allocate.

  On a mesh it is those of a device.
  """
  total = 4 * rows + page_bytes(config, pools)  # Lengths.
  for pool in pools.values():
    # The table; start, limit and position of each logical slot; the first slot.
    total += rows * 4 * (pool.row_pages + 3 * pool.row_slots + 1)
  return total


def page_bytes(
  config: model_config.ModelConfig, pools: Mapping[str, Pool]
) -> int:
  """Returns the bytes of all pages of all pools, on a device."""
  quantization = config.quantization
  if quantization.kv == 'int8':
    value_bytes = 1
    scale_bytes = 4 if quantization.kv_scale == 'token' else 0
  else:
    value_bytes = 2 if config.dtype == 'bfloat16' else 4
    scale_bytes = 0
  slot_bytes = 2 * (config.head_dim * value_bytes + scale_bytes)
  return sum(
    len(pool.owners) * pool.heads * pool.pages * pool.slots * slot_bytes
    for pool in pools.values()
  )
