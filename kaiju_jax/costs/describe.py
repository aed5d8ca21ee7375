"""Prints a description of a model before anything compiles.

It prints the layer diagram, the parameters, the KV cache beside those of
ordinary models, and an estimate of the training memory. `footprint.py` and
`training_memory.py` compute the numbers; this module prints them.
"""

from collections.abc import Iterator
from collections.abc import Sequence

from kaiju_jax.costs import footprint
from kaiju_jax.costs import training_memory
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import paging
from kaiju_jax.reporting import report

_COLOURS = {'local': 'cyan', 'global': 'magenta'}
LENGTHS = (1024, 8192, 32_768, 131_072)


def describe(
  config: model_config.ModelConfig,
  *,
  name: str = 'model',
  batch: int = 1,
  length: int = 8192,
  fsdp: int = 1,
  tensor: int = 1,
  lengths: Sequence[int] = LENGTHS,
) -> report.Report:
  """Returns the diagram and the tables of parameters, caches and memory.

  Args:
    name: the model's name in the heading.
    batch: rows per microbatch, for the training memory.
    length: tokens per row, for the training memory.
    fsdp: devices that D is split over.
    tensor: devices that F, H, V and L are split over.
    lengths: tokens of the sequences whose KV caches are compared.

  Raises:
    ValueError: the model cannot be built, or the mesh does not fit it.
  """
  model_config.check(config)
  memory = memory_table(config, batch, length, fsdp, tensor)
  total = footprint.count(footprint.parameters(config))
  page = report.Report()
  page.say(f'[bold]{name}[/bold]: {_magnitude(total)} parameters')
  for part in (
    diagram(config.layers()),
    mathematics(config),
    parameter_table(config),
    kv_table(config, lengths),
    published_table(config, lengths),
    *([decoding_table(config, tensor, lengths)] if tensor > 1 else []),
    memory,
  ):
    page.add('', part)
  return page


def diagram(layers: Sequence[layers_lib.Layer]) -> report.Table:
  """Returns the repeating block, with rails from KV owners to their readers."""
  block = layers_lib.repeating_block(layers)
  repeats = len(layers) // len(block)
  title = f'{len(layers)} layers'
  if repeats > 1:
    title += f' = {repeats} × this block of {len(block)}'
  rows = [
    (
      f'{index:5}',
      _colour(layer.kind, layer.kind)
      + ('' if layer.turned else ', not rotated')
      + (', sink logit' if layer.sink_logit else ''),
      _seen(layer),
      rails,
    )
    for index, (layer, rails) in enumerate(zip(block, _rails(block)))
  ]
  columns = 'layer', 'kind', 'sees', 'keys and values'
  return report.Table(rows, columns, title, left=len(columns), look='light')


def _seen(layer: layers_lib.Layer) -> str:
  """Returns which tokens a layer's query sees."""
  if layer.window is None:
    return 'all'
  sinks = f'first {layer.sinks:,}, ' if layer.sinks else ''
  return f'{sinks}last {layer.window:,}'


def _colour(text: str, kind: str) -> str:
  """Returns text that a terminal shows in the colour of a kind of layer."""
  return f'[{_COLOURS[kind]}]{text}[/]'


def mathematics(config: model_config.ModelConfig) -> str:
  """Returns a line on feed-forward, norms, rotary angles and embedding."""
  feedforward = {
    'relu2': 'relu² feed-forward',
    'swiglu': 'gated feed-forward (silu)',
    'geglu': 'gated feed-forward (gelu)',
  }.get(config.feedforward, f'feed-forward {config.feedforward!r} of your own')
  norms = {
    'before': 'before',
    'after': 'after',
    'both': 'before and after',
  }[config.norms]
  parts = [feedforward, f'norms {norms} each part']
  if config.qk_norm != 'none':
    which = 'each head' if config.qk_norm == 'head' else 'all heads together'
    parts.append(f'queries and keys normed over {which}')
  if config.qkv_bias:
    parts.append('biases of queries, keys and values')
  kinds = {layer.kind for layer in config.layers() if layer.turned}
  bases = {'local': config.rope_local, 'global': config.rope_global}
  for kind in sorted(kinds):
    base = f'base {bases[kind]:,.0f}' if bases[kind] else 'none'
    scaling = rotary_scaling(config, kind) if bases[kind] else ''
    parts.append(f'{kind} rotary angles: {base}{scaling}')
  if not config.scaled_embedding:
    parts.append('embeddings without √D')
  return '; '.join(parts) + '.'


def rotary_scaling(config: model_config.ModelConfig, kind: str) -> str:
  """Returns how a kind's angles are scaled, such as ', yarn × 4'; or ''."""
  scaling = config.rope_scaling
  is_scaled = kind == 'global' or scaling.layers == 'all'
  if scaling.kind == 'none' or not is_scaled:
    return ''
  return f', {scaling.kind} × {scaling.factor:g}'


def _rails(block: Sequence[layers_lib.Layer]) -> Iterator[str]:
  """Yields each layer's line of rails.

  ● is a layer that makes keys and values; ├ and ╰ are layers that read them. An
  owner takes the first free rail of its kind; the rails of local layers are on
  the left.
  """
  last = {layer.kv_from: index for index, layer in enumerate(block)}
  place = {}
  for kind in ('local', 'global'):
    offset = max(place.values(), default=-1) + 1
    for owner in layers_lib.owners(block):
      if block[owner].kind == kind:
        taken = {
          rail
          for other, rail in place.items()
          if block[other].kind == kind and last[other] > owner
        }
        place[owner] = next(
          rail for rail in range(offset, len(block) + 1) if rail not in taken
        )
  width = max(place.values()) + 1
  for index, layer in enumerate(block):
    line = ''
    for rail in range(width):
      on_rail = [
        owner
        for owner, r in place.items()
        if r == rail and owner <= index <= last[owner]
      ]
      if on_rail:
        owner = on_rail[-1]
        mark = _mark(index, owner, last[owner], layer.kv_from)
        line += _colour(mark, block[owner].kind) + ' '
      else:
        line += '  '
    own = layer.kv_from == index
    yield line + (' own' if own else f' of layer {layer.kv_from}')


def _mark(index: int, owner: int, last: int, kv_from: int) -> str:
  if index == owner:
    return '●'
  if kv_from != owner:
    return '│'
  return '╰' if index == last else '├'


def parameter_table(config: model_config.ModelConfig) -> report.Table:
  """Returns the parameters by family; a name's suffix gives its dimensions."""
  parameters = footprint.parameters(config)
  total = footprint.count(parameters)
  heads = config.num_kv_heads
  rows = []
  for family in dict.fromkeys(p.family for p in parameters):
    members = [p for p in parameters if p.family == family]
    size = footprint.count(members)
    names = ', '.join(f'{p.name} × {p.copies}' for p in members)
    rows.append((family, names, f'{size:,}', f'{100 * size / total:.2f} %'))
  rows.append(('total', '', f'{total:,}', ''))
  return report.Table(
    rows,
    ('family', 'name × layers', 'numbers', 'of all'),
    'Parameters',
    f'D {config.d_model:,}   F {config.d_ff:,}   H {config.num_heads:,}'
    + (f'   U {heads:,}' if heads > 1 else '')
    + f'   K {config.head_dim:,}   V {config.vocab_size:,}',
    left=2,
    look='light',
    has_total=True,
  )


def kv_table(
  config: model_config.ModelConfig, lengths: Sequence[int]
) -> report.Table:
  """Returns the KV cache at each length, beside all-global models' caches."""
  kv = 'int8 and scales' if config.quantization.kv == 'int8' else config.dtype
  columns = [footprint.kv_caches(config, length) for length in lengths]
  rows = [
    (
      f'{length:,}',
      f'{report.Bytes(own.bytes)}\n{own.per_token:,.0f} B/token\n'
      f'{_cache_bytes(config, length):,} B',
      *(_times(other.bytes, own.bytes) for other in others),
    )
    for length, (own, *others) in zip(lengths, columns)
  ]
  return report.Table(
    rows,
    (
      *('length', 'this model'),
      *(f'{x.name}\n{x.per_token:,.0f} B/token' for x in columns[0][1:]),
    ),
    f'KV cache of one sequence: this model ({kv}) beside all-global models'
    ' of its depth and head size',
    'Third line: what decoding allocates for one row, tables included, in pages'
    f' of {paging.PAGE} slots.',
    left=0,
    look='light',
  )


def published_table(
  config: model_config.ModelConfig, lengths: Sequence[int]
) -> report.Table:
  """Returns KV caches of published models, and how many times ours they are."""
  rows = []
  for length in lengths:
    own = footprint.kv_caches(config, length)[0].bytes
    others = footprint.published_caches(length)
    rows.append((f'{length:,}', *(_times(x.bytes, own) for x in others)))
  return report.Table(
    rows,
    ('length', *footprint.PUBLISHED),
    'KV cache of published models, bf16',
    left=0,
    look='light',
  )


def _times(size: float, own: float) -> str:
  """Returns a size, and on a second line how many times ours it is."""
  return f'{report.Bytes(size)}\n[bold]{size / own:,.1f}×[/bold]'


def _cache_bytes(config: model_config.ModelConfig, length: int) -> int:
  """Returns the bytes that decoding allocates for a cache of one row."""
  pools = paging.pools(config.layers(), 1, length, heads=config.num_kv_heads)
  return paging.bytes_of(config, pools, 1)


def decoding_table(
  config: model_config.ModelConfig, tensor: int, lengths: Sequence[int]
) -> report.Table:
  """Returns a device's bytes where `tensor` devices decode together.

  Raises ValueError: see `model_config.check_tensor`.
  """
  weights = footprint.weight_bytes(config, tensor)
  rows = [('weights', report.Bytes(weights), '')]
  slots = paging.choose_page(config.num_kv_heads, tensor, platform='')
  for length in lengths:
    pools = paging.pools(
      config.layers(), 1, length, page=slots, heads=config.num_kv_heads
    )
    whole = paging.page_bytes(config, pools)
    rows.append(
      (
        f'KV, {length:,} tokens',
        report.Bytes(whole / tensor),
        f'{whole:,} / {tensor}',
      )
    )
  return report.Table(
    rows,
    ('', 'bytes', 'of all devices'),
    f'Decoding on {tensor} devices, bytes of one: weights split, a stripe of'
    f' each page of {slots} slots',
    look='light',
  )


def memory_table(
  config: model_config.ModelConfig,
  batch: int,
  length: int,
  fsdp: int,
  tensor: int,
) -> report.Table:
  """Returns the estimated bytes of a training step, with remat and without."""
  estimates = training_memory.with_and_without_remat(
    config, batch, length, fsdp, tensor
  )
  rows = [
    (part, *(report.Bytes(one[part]) for one in estimates.values()))
    for part in next(iter(estimates.values()))
  ]
  totals = (report.Bytes(sum(one.values())) for one in estimates.values())
  rows.append(('total', *totals))
  return report.Table(
    rows,
    (
      'part',
      *(
        f"remat '{x}'" + (' (as configured)' if x == config.remat else '')
        for x in estimates
      ),
    ),
    f'Training memory per device, estimated: fsdp {fsdp} × tensor {tensor},'
    f' microbatch of {batch} × {length:,} tokens',
    look='light',
    has_total=True,
  )


def _magnitude(count: int) -> str:
  for unit, size in (('B', 10**9), ('M', 10**6)):
    if count >= size:
      return f'{count / size:.3g} {unit}'
  return f'{count:,}'
