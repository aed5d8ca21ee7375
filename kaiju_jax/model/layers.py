"""The stack of layers: each layer's window and source of keys and values.

One plain tuple of `Layer`s describes interleaved windows and cross-layer KV
sharing. Cache buffers, attention calls, parameter counts, KV bytes and the
printed diagram all derive from it.

From the sources: sliding windows and global layers interleaved at roughly 6:1,
window 1,024, and keys and values shared by 2–3 adjacent layers of the same
attention mechanism (the Kaiju post); global layers also share across their
non-adjacent repetitions (secondary accounts). Our guess: the global layer
closes each period, so that local layers come before the first global one.

The sources have no attention sinks "currently". Beside its window, a local
layer here may keep the first tokens of a document in sight (Xiao et al. 2023,
arXiv:2309.17453), and any layer may have gpt-oss's learned logit per head.
"""

from collections.abc import Sequence
import dataclasses
import re

MOST = 1024  # Layers (our guess); some work grows with their square.
_FARTHEST = 2**30  # A position minus a window is an int32.
_WORD = re.compile(r'([LGN])([0-9]+)(:[0-9]+)?(\+[0-9]+)?(s)?')


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
    sinks: the first tokens of a document, by position, that a query sees beside
      the window; 0 for a global layer, which sees them anyway.
    sink_logit: whether each head has a learned logit without a value in its
      softmax's sum.
  """

  window: int | None
  kv_from: int
  turned: bool = True
  sinks: int = 0
  sink_logit: bool = False

  @property
  def kind(self) -> str:
    return 'global' if self.window is None else 'local'

  @property
  def letter(self) -> str:
    """L, G, or N for a global layer that is not turned."""
    if not self.turned:
      return 'N'
    return 'G' if self.window is None else 'L'

  @property
  def reading(self) -> tuple[int | None, bool, int, bool]:
    """What layers that share keys and values have in common."""
    return self.window, self.turned, self.sinks, self.sink_logit


def kaiju_layers(
  num_layers: int,
  window: int,
  period: int = 7,
  local_share: int = 3,
  global_share: int = 2,
  sinks: int = 0,
  sink_logit: bool = False,
) -> tuple[Layer, ...]:
  """Returns the interleaved stack: `period − 1` local layers, then a global.

  Args:
    num_layers: depth of the stack.
    window: positions that a local layer sees, itself included.
    period: one layer in `period` is global; 1 makes all global, 0 none.
    local_share: how many adjacent local layers share keys and values (within
      one run of local layers).
    global_share: how many successive global layers share keys and values.
    sinks: first tokens of a document that every local layer sees.
    sink_logit: whether local layers have a learned logit per head.

  Raises:
    ValueError: names the argument that is out of range.
  """
  for name, value, least in (
    ('num_layers', num_layers, 1),
    ('window', window, 1),
    ('period', period, 0),
    ('local_share', local_share, 1),
    ('global_share', global_share, 1),
    ('sinks', sinks, 0),
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
      layers.append(Layer(window, owner_local, True, sinks, sink_logit))
  return tuple(layers)


def draw(layers: Sequence[Layer]) -> str:
  """Returns the tuple as one line, 'L0 L0 L0 L3 L3 L3 G6'.

  Sinks follow a plus and `s` stands for a learned logit: 'L0+4s'. Local layers
  name their window, 'L0:128+4s', only if they have several.
  """
  several = len({layer.window for layer in layers} - {None}) > 1

  def word(layer):
    window = f':{layer.window}' if several and layer.window else ''
    sinks = f'+{layer.sinks}' if layer.sinks else ''
    logit = 's' if layer.sink_logit else ''
    return f'{layer.letter}{layer.kv_from}{window}{sinks}{logit}'

  return ' '.join(map(word, layers))


def parse(drawing: str, window: int) -> tuple[Layer, ...]:
  """Returns the tuple that `draw` printed.

  Args:
    drawing: one word per layer, such as 'L0:128+4s': a letter, the layer whose
      keys and values it reads, its window, its sinks, and `s` for a logit.
    window: of local layers whose word has none.

  Raises:
    ValueError: a word that is no layer, or a stack that `check` refuses.
  """
  layers = []
  for word in drawing.split():
    match = _WORD.fullmatch(word)
    if not match or (match[1] != 'L' and match[3]):
      raise ValueError(
        f'{word!r} is not L (local), G (global) or N (global, not turned)'
        ' followed by the index of the layer whose keys and values it reads, as'
        " in 'L0'; a local layer may add its window and sinks, 'L0:128+4', and"
        " any layer 's' for a learned sink logit."
      )
    letter, owner, own, sinks, logit = match.groups()
    seen = int(own[1:]) if own else window if letter == 'L' else None
    layers.append(
      Layer(seen, int(owner), letter != 'N', int(sinks or 0), bool(logit))
    )
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
    if layer.window is not None and not 1 <= layer.window <= _FARTHEST:
      raise ValueError(
        f'layer {index}: window={layer.window}; a window counts the query'
        ' itself, so it is at least 1 (None for a global layer), and at most'
        f' {_FARTHEST}.'
      )
    if not 0 <= layer.sinks <= (_FARTHEST if layer.window else 0):
      raise ValueError(
        f'layer {index}: sinks={layer.sinks}; must be 0…{_FARTHEST}, and 0 in a'
        ' global layer, which sees all tokens.'
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
    for name in 'sinks', 'sink_logit':
      theirs, own = getattr(owner, name), getattr(layer, name)
      if theirs != own:
        raise ValueError(
          f'layer {index}: kv_from={layer.kv_from} has {name}={theirs} against'
          f' {own}; layers that share keys and values agree on it.'
        )


def repeating_block(layers: Sequence[Layer]) -> tuple[Layer, ...]:
  """Returns the smallest block whose repetition is the whole stack.

  Relative `kv_from` and all else agree in all repeats, and no layer reads from
  outside its own repeat. The model scans over this block, so that depth costs
  no compile time. A stack without a period is its own block.
  """
  depth = len(layers)
  for period in range(1, depth + 1):
    if depth % period:
      continue
    block = layers[:period]
    if all(
      layer.reading == block[index % period].reading
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

  A local layer keeps at most its window and sinks. Each token and head has one
  scale for K and one for V, `bytes_per_scale` each (0 if values are not
  quantized).
  """
  per_token = 2 * num_kv_heads * (head_dim * bytes_per_value + bytes_per_scale)
  return sum(
    per_token * min(length, (layers[i].window or length) + layers[i].sinks)
    for i in owners(layers)
  )
