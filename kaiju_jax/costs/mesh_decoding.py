"""Estimates decoding on a mesh: bytes per device, texts that fit, seconds.

N devices split F, H and V of the weights. U heads of keys and values are split
by heads first; W = max(1, N/U) devices then share each head, and may hold it
whole or have stripes of every page. With Q = H·K, a device sends, per token and
layer and in units of (N − 1)/N,

    tokens split     2 (D + 4)    codes and a scale, gathered on entering
                     2 · 2 D      bf16, reduce-scattered on leaving
    not split        2 · 4 D      bf16, all-reduced on leaving
    striped pages    Q + 4 H      codes of queries, gathered
                     2 Q + 4 H    outputs and lse, all-to-all
    both             8 N          two statistics of the outputs, gathered

where striped pages count (W − 1)/(N − 1) as much. Floats cross instead of codes
where products are not int8. A step of B texts takes

    weights          bytes / memory bandwidth, or operations / rate if more
    attention        bytes of the keys and values that layers read / bandwidth
    wire             `links.seconds` of the above
    launches         the number of collectives × `LAUNCH`

which leaves out norms, sampling, the host, and whatever waits for something.
"""

from collections.abc import Iterator
import dataclasses
import math
from typing import NamedTuple

from kaiju_jax.costs import accelerator as accelerator_lib
from kaiju_jax.costs import footprint
from kaiju_jax.costs import links
from kaiju_jax.model import config as model_config
from kaiju_jax.model import paging
from kaiju_jax.sharding import config as sharding_config

# Seconds of starting one collective, by platform; our guesses. NCCL's
# all-to-all of small arrays was measured at 45 to 74 µs, a fused one at 15.5
# (vllm#48196).
LAUNCH = {'cuda': 10e-6, 'tpu': 2e-6, 'cpu': 0.0}
# Bytes that NCCL, the context and temporaries take; our guesses.
RESERVED = {'cuda': 2e9, 'tpu': 0.25e9, 'cpu': 0.0}
# The share of a device's memory that a program may take; as in `aot/figures`.
SHARE = 0.9
# Texts whose rings stand beside the tokens that fit.
ROWS = 64
LENGTHS = (8192, 32_768)
BATCHES = (1, 64, 256)


class DecodingArm(NamedTuple):
  """A way to lay a cache and a step over devices."""

  name: str
  about: str
  splits_tokens: bool  # Between projections; otherwise outputs are all-reduced.
  striped: str  # Whose pages: 'all', 'global' or 'none'.
  kv_heads: int | None = None  # Of a model like ours; None for its own.


ARMS = (
  DecodingArm('S', 'all pages striped, tokens split', True, 'all'),
  DecodingArm('R', 'rings whole, tokens split', True, 'global'),
  DecodingArm('A', 'all pages striped, all-reduces', False, 'all'),
  DecodingArm('AR', 'rings whole, all-reduces', False, 'global'),
  DecodingArm(
    'TP', 'tensor parallel: a few KV heads replicated', False, 'none'
  ),
  DecodingArm('GQA-8', 'tensor parallel with 8 KV heads', False, 'none', 8),
)


class Exchange(NamedTuple):
  """The collectives of one kind in a step, all layers together."""

  kind: str  # One of `aot.hlo.collectives.KINDS`.
  # Per token, of a device's result; of a reduce-scatter's operand.
  payload: float
  launches: int


class StepSeconds(NamedTuple):
  """A step's parts."""

  weights: float
  attention: float
  wire: float
  launches: float


@dataclasses.dataclass(frozen=True)
class MeshPlan:
  """One arm of one model on the devices of one slice."""

  config: model_config.ModelConfig
  accelerator: accelerator_lib.Accelerator
  arm: DecodingArm = ARMS[0]

  @property
  def devices(self) -> int:
    return self.accelerator.devices

  @property
  def model(self) -> model_config.ModelConfig:
    """The model, with the arm's heads of keys and values."""
    heads = self.arm.kv_heads or self.config.num_kv_heads
    return dataclasses.replace(self.config, num_kv_heads=heads)

  @property
  def page(self) -> int:
    """Slots of a page."""
    devices = 1 if self.arm.striped == 'none' else self.devices
    return paging.choose_page(
      self.model.num_kv_heads, devices, self.accelerator.chip.platform
    )

  def _is_striped(self, window: int | None) -> bool:
    return self.arm.striped == 'all' or (
      self.arm.striped == 'global' and window is None
    )

  def _ways(self, window: int | None) -> int:
    """Returns among how many devices keys and values are split."""
    heads = self.model.num_kv_heads
    return (
      self.devices if self._is_striped(window) else min(heads, self.devices)
    )

  def _pools(self, length: int) -> Iterator[tuple[paging.Pool, float]]:
    """Yields each pool of a text, with a device's bytes of it."""
    model = self.model
    pools = paging.pools(
      *(model.layers(), 1, length), page=self.page, heads=model.num_kv_heads
    )
    for kind, pool in pools.items():
      whole = paging.page_bytes(model, {kind: pool})
      yield pool, whole / self._ways(pool.window)

  def text_bytes(self, length: int) -> dict[str, float]:
    """Returns a device's bytes of a text in local and in global layers."""
    found = {'local': 0.0, 'global': 0.0}
    for pool, size in self._pools(length):
      found['global' if pool.window is None else 'local'] += size
    return found

  @property
  def free(self) -> float:
    """Bytes of a device that remain for keys and values; may be negative."""
    chip = self.accelerator.chip
    taken = (
      footprint.weight_bytes(self.model, self.devices) + RESERVED[chip.platform]
    )
    return SHARE * chip.hbm_bytes - taken

  def texts(self, length: int) -> int:
    """Returns how many texts of a length fit, by memory alone.

    On a GPU `paging.check_platform` refuses pools of so many codes that the
    kernel cannot address.
    """
    return max(0, int(self.free // sum(self.text_bytes(length).values())))

  def tokens(self, rows: int = ROWS) -> float:
    """Returns the tokens that fit where `rows` texts share the memory.

    Infinite if every layer has a window.
    """
    rings = rows * self.text_bytes(self.model.max_length)['local']
    each = self.text_bytes(self.page)['global'] / self.page
    left = max(0.0, self.free - rings)
    return left / each if each else math.inf

  def exchanges(self) -> Iterator[Exchange]:
    """Yields what crosses in a step; nothing on one device."""
    model, count = self.model, self.devices
    layers = model.layers()
    if count == 1:
      return
    b = footprint.float_bytes(model.dtype)
    is_coded = model.quantization.matmul == 'int8'
    c, scale = (1, 4) if is_coded else (b, 0)
    D, H, depth = model.d_model, model.num_heads, len(layers)
    Q = H * model.head_dim
    yield Exchange('all-gather', 8.0 * count * depth, depth)
    if self.arm.splits_tokens:
      yield Exchange('all-gather', 2.0 * (c * D + scale) * depth, 2 * depth)
      yield Exchange('reduce-scatter', 2.0 * b * D * depth, 2 * depth)
    else:
      yield Exchange('all-reduce', 2.0 * b * D * depth, 2 * depth)
    stripes = paging.count_stripes(model.num_kv_heads, count)
    readers = sum(self._is_striped(layer.window) for layer in layers)
    if stripes > 1 and readers:
      share = readers * (stripes - 1) / (count - 1)
      c, scale = (1, 4) if model.quantization.qk == 'int8' else (b, 0)
      yield Exchange('all-gather', (c * Q + scale * H) * share, readers)
      yield Exchange('all-to-all', (b * Q + 4.0 * H) * share, readers)

  def wire(self) -> float:
    """Returns the bytes that a device sends per token and layer."""
    passes = {'all-reduce': 2}
    sent = sum(x.payload * passes.get(x.kind, 1) for x in self.exchanges())
    share = (self.devices - 1) / self.devices
    return sent * share / len(self.model.layers())

  def launches(self) -> float:
    """Returns the collectives per layer."""
    count = sum(x.launches for x in self.exchanges())
    return count / len(self.model.layers())

  def seconds(self, batch: int, length: int = LENGTHS[0]) -> StepSeconds:
    """Returns a step's time, one token for each of `batch` texts.

    Raises ValueError: the chip's bandwidth is not known.
    """
    model, chip, count = self.model, self.accelerator.chip, self.devices
    is_int8 = model.quantization.matmul == 'int8'
    rate = chip.matmul_int8 if is_int8 else chip.matmul_bf16
    if not rate:
      raise ValueError(f'{self.accelerator.name}: {chip.name} has no rates.')
    numbers = footprint.count(footprint.parameters(model))
    weights = max(
      footprint.weight_bytes(model, count) / chip.hbm_bandwidth,
      2 * numbers * batch / count / rate,
    )
    read = self._read_bytes(length) * batch
    mesh = sharding_config.MeshConfig(tensor=count)
    wire = launches = 0.0
    for x in self.exchanges():
      parts = count if x.kind == 'reduce-scatter' else 1
      wire += links.seconds(
        x.kind, x.payload * batch / parts, ('tensor',), self.accelerator, mesh
      )
      launches += x.launches * LAUNCH[chip.platform]
    return StepSeconds(weights, read / chip.hbm_bandwidth, wire, launches)

  def _read_bytes(self, length: int) -> float:
    """Returns what all layers read of a text, on one device."""
    sizes = {}
    for pool, size in self._pools(length):
      sizes |= dict.fromkeys(pool.owners, size / len(pool.owners))
    return sum(sizes[layer.kv_from] for layer in self.model.layers())


def break_even(
  config: model_config.ModelConfig, accelerator: accelerator_lib.Accelerator
) -> float:
  """Returns the tokens of a step from which splitting them is faster.

  Below, what two launches less per layer save is more than an all-reduce's
  second pass takes. Raises ValueError: as `MeshPlan.seconds`.
  """
  split, whole = (
    MeshPlan(config, accelerator, arm).seconds(1)
    for arm in ARMS
    if arm.striped == 'all'
  )
  return (split.launches - whole.launches) / (whole.wire - split.wire)
