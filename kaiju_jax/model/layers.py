"""The stack of layers: each layer's window and source of keys and values.

One plain tuple of `Layer`s describes interleaved windows and cross-layer KV
sharing. Cache buffers, attention calls, parameter counts, KV bytes and the
printed diagram all derive from it.

From the sources: sliding windows and global layers interleaved at roughly 6:1,
window 1,024, and keys and values shared by 2–3 adjacent layers of the same
attention mechanism (the Kaiju post); global layers also share across their
non-adjacent repetitions (secondary accounts). Our guess: the global layer
closes each period, so that local layers come before the first global one.
"""

from collections.abc import Sequence
import dataclasses

MOST = 1024  # Layers (our guess); some work grows with their square.


@dataclasses.dataclass(frozen=True)
class Layer:
  """One layer of the stack.

  Attributes:
    window: positions that a query sees, itself included; None for all that
      visibility allows.
    kv_from: index of the layer whose keys and values this layer reads; its own
      index if it makes them.
    turned: whether rotary embeddings turn its queries and keys. Local layers
      always are (`rope_local=0` turns none of them).
  """

  window: int | None
  kv_from: int
  turned: bool = True

  @property
  def kind(self) -> str:
    return 'global' if self.window is None else 'local'

  @property
  def letter(self) -> str:
    """L, G, or N for a global layer that is not turned."""
    if not self.turned:
      return 'N'
    return 'G' if self.window is None else 'L'


def kaiju_layers(
  num_layers: int,
  window: int,
  period: int = 7,
  local_share: int = 3,
  global_share: int = 2,
) -> tuple[Layer, ...]:
  """Returns the interleaved stack: `period − 1` local layers, then a global.

  Args:
    num_layers: depth of the stack.
    window: positions that a local layer sees, itself included.
    period: one layer in `period` is global; 1 makes all global, 0 none.
    local_share: how many adjacent local layers share keys and values (within
      one run of local layers).
    global_share: how many successive global layers share keys and values.

  Raises:
    ValueError: names the argument that is out of range.
  """
  for name, value, least in (
    ('num_layers', num_layers, 1),
    ('window', window, 1),
    ('period', period, 0),
    ('local_share', local_share, 1),
    ('global_share', global_share, 1),
  ):
    if value < least:
      raise ValueError(f'{name}={value}: must be at least {least}.')
  if num_layers > MOST:
    raise ValueError(f'num_layers={num_layers}: must be at most {MOST}.')
  layers = []
  owner_local = owner_global = 0
  readers_local = readers_global = 0
  for index in range(num_layers):
    if period and index % period == period - 1:
      if readers_global % global_share == 0:
        owner_global = index
      readers_global += 1
      readers_local = 0
      layers.append(Layer(None, owner_global))
    else:
      if readers_local % local_share == 0:
        owner_local = index
      readers_local += 1
      layers.append(Layer(window, owner_local))
  return tuple(layers)


def draw(layers: Sequence[Layer]) -> str:
  """Returns the tuple as one line, 'L0 L0 L0 L3 L3 L3 G6'."""
  return ' '.join(f'{layer.letter}{layer.kv_from}' for layer in layers)


def parse(drawing: str, window: int) -> tuple[Layer, ...]:
  """Returns the tuple that `draw` printed, with `window` in local layers.

  Raises:
    ValueError: a word that is not L, G or N followed by a layer's index, or a
      stack that `check` refuses.
  """
  layers = []
  for word in drawing.split():
    letter, owner = word[0], word[1:]
    if letter not in 'LGN' or not owner.isdigit():
      raise ValueError(
        f'{word!r} is not L (local), G (global) or N (global, not turned)'
        ' followed by the index of the layer whose keys and values it reads, as'
        " in 'L0'."
      )
    seen = window if letter == 'L' else None
    layers.append(Layer(seen, int(owner), turned=letter != 'N'))
  check(layers)
  return tuple(layers)


def check(layers: Sequence[Layer]) -> None:
  """Refuses a stack that cannot run.

  Raises:
    ValueError: names the layer, the value and what would be right.
  """
  if not layers:
    raise ValueError('layers is empty: a stack needs at least one layer.')
  if len(layers) > MOST:
    raise ValueError(f'{len(layers)} layers: must be at most {MOST}.')
  for index, layer in enumerate(layers):
    if layer.window is not None and layer.window < 1:
      raise ValueError(
        f'layer {index}: window={layer.window}; a window counts the query'
        ' itself, so it is at least 1 (None for a global layer).'
      )
    if not layer.turned and layer.window is not None:
      raise ValueError(
        f'layer {index}: turned=False with window={layer.window}; only a global'
        ' layer can be left unturned by itself.'
      )
    if not 0 <= layer.kv_from <= index:
      raise ValueError(
        f'layer {index}: kv_from={layer.kv_from} points forward; a layer reads'
        f' keys and values of itself or an earlier layer (0…{index}).'
      )
    owner = layers[layer.kv_from]
    if owner.kv_from != layer.kv_from:
      raise ValueError(
        f'layer {index}: kv_from={layer.kv_from}, but that layer makes no keys'
        f' and values: it reads those of layer {owner.kv_from}.'
      )
    if owner.window != layer.window:
      raise ValueError(
        f'layer {index}: kv_from={layer.kv_from} is of another kind: window'
        f' {owner.window} against {layer.window}; layers share keys and values'
        ' only within one kind.'
      )
    if owner.turned != layer.turned:
      raise ValueError(
        f'layer {index}: kv_from={layer.kv_from} has keys that are'
        f' {"" if owner.turned else "not "}turned; layers N and G share none.'
      )


def repeating_block(layers: Sequence[Layer]) -> tuple[Layer, ...]:
  """Returns the smallest block whose repetition is the whole stack.

  Letters, windows and relative `kv_from` agree in all repeats, and no layer
  reads from outside its own repeat. The model scans over this block, so that
  depth costs no compile time. A stack without a period is its own block.
  """
  depth = len(layers)
  for period in range(1, depth + 1):
    if depth % period:
      continue
    block = layers[:period]
    if all(
      (layer.window, layer.turned)
      == (block[index % period].window, block[index % period].turned)
      and layer.kv_from - (index - index % period)
      == block[index % period].kv_from
      for index, layer in enumerate(layers)
    ):
      return tuple(block)
  raise AssertionError('the whole stack is always a block of itself')


def owners(layers: Sequence[Layer]) -> tuple[int, ...]:
  """Returns the indices of the layers that make keys and values."""
  return tuple(i for i, layer in enumerate(layers) if layer.kv_from == i)


def kv_bytes(
  layers: Sequence[Layer],
  length: int,
  head_dim: int,
  num_kv_heads: int = 1,
  bytes_per_value: int = 1,
  bytes_per_scale: int = 4,
) -> int:
  """Returns the bytes of one sequence's keys and values at `length` tokens.

  A local layer keeps at most its window. Each token and head has one scale for
  K and one for V, `bytes_per_scale` each (0 if values are not quantized).
  """
  per_token = 2 * num_kv_heads * (head_dim * bytes_per_value + bytes_per_scale)
  return sum(
    per_token * min(length, layers[i].window or length) for i in owners(layers)
  )
