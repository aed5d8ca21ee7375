"""Prints a description of a model before anything compiles.

It prints the layer diagram, the parameters, the KV cache beside those of
ordinary models, and an estimate of the training memory. `footprint.py` and
`training_memory.py` compute the numbers; this module prints them.
"""

from collections.abc import Iterator
from collections.abc import Sequence

import rich.box
import rich.console
import rich.table
import rich.text

from kaiju_jax.costs import footprint
from kaiju_jax.costs import training_memory
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import paging

_COLOURS = {'local': 'cyan', 'global': 'magenta'}
LENGTHS = (1024, 8192, 32_768, 131_072)


def describe(
  config: model_config.ModelConfig,
  console: rich.console.Console,
  *,
  name: str = 'model',
  batch: int = 1,
  length: int = 8192,
  fsdp: int = 1,
  tensor: int = 1,
  lengths: Sequence[int] = LENGTHS,
) -> None:
  """Prints the diagram and the tables of parameters, caches and memory.

  Args:
    config: the model.
    console: where to print.
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
  console.rule(f'[bold]{name}[/bold]: {_magnitude(total)} parameters')
  for part in (
    diagram(config.layers()),
    mathematics(config),
    parameter_table(config),
    kv_table(config, lengths),
    published_table(config, lengths),
    memory,
  ):
    console.print()
    console.print(part)


def diagram(layers: Sequence[layers_lib.Layer]) -> rich.table.Table:
  """Returns the repeating block, with rails from KV owners to their readers."""
  block = layers_lib.repeating_block(layers)
  repeats = len(layers) // len(block)
  title = f'{len(layers)} layers'
  if repeats > 1:
    title += f' = {repeats} × this block of {len(block)}'
  table = empty_table(title)
  for header in ('layer', 'kind', 'sees', 'keys and values'):
    table.add_column(header, justify='right' if header == 'layer' else 'left')
  for index, (layer, rails) in enumerate(zip(block, _rails(block))):
    colour = _COLOURS[layer.kind]
    window = layer.window
    table.add_row(
      str(index),
      f'[{colour}]{layer.kind}[/{colour}]'
      + ('' if layer.turned else ', not rotated'),
      'all' if window is None else f'last {window:,}',
      rails,
    )
  return table


def mathematics(config: model_config.ModelConfig) -> str:
  """Returns a line on feed-forward, norms, rotary angles and embedding."""
  feedforward = {
    'relu2': 'relu² feed-forward',
    'swiglu': 'gated feed-forward (silu)',
    'geglu': 'gated feed-forward (gelu)',
  }[config.feedforward]
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


def _rails(block: Sequence[layers_lib.Layer]) -> Iterator[rich.text.Text]:
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
    line = rich.text.Text()
    for rail in range(width):
      on_rail = [
        owner
        for owner, r in place.items()
        if r == rail and owner <= index <= last[owner]
      ]
      mark, colour = ' ', ''
      if on_rail:
        owner = on_rail[-1]
        colour = _COLOURS[block[owner].kind]
        mark = _mark(index, owner, last[owner], layer.kv_from)
      line.append(f'{mark} ', style=colour)
    own = layer.kv_from == index
    line.append(' own' if own else f' of layer {layer.kv_from}')
    yield line


def _mark(index: int, owner: int, last: int, kv_from: int) -> str:
  if index == owner:
    return '●'
  if kv_from != owner:
    return '│'
  return '╰' if index == last else '├'


def parameter_table(config: model_config.ModelConfig) -> rich.table.Table:
  """Returns the parameters by family; a name's suffix gives its dimensions."""
  parameters = footprint.parameters(config)
  total = footprint.count(parameters)
  table = empty_table('Parameters')
  heads = config.num_kv_heads
  table.caption = (
    f'D {config.d_model:,}   F {config.d_ff:,}   H {config.num_heads:,}'
    + (f'   U {heads:,}' if heads > 1 else '')
    + f'   K {config.head_dim:,}   V {config.vocab_size:,}'
  )
  table.add_column('family', no_wrap=True)
  table.add_column('name × layers')
  table.add_column('numbers', justify='right', no_wrap=True)
  table.add_column('of all', justify='right', no_wrap=True)
  for family in dict.fromkeys(p.family for p in parameters):
    members = [p for p in parameters if p.family == family]
    size = footprint.count(members)
    table.add_row(
      family,
      ', '.join(f'{p.name} × {p.copies}' for p in members),
      f'{size:,}',
      f'{100 * size / total:.2f} %',
    )
  table.add_section()
  table.add_row('total', '', f'{total:,}', '', style='bold')
  return table


def kv_table(
  config: model_config.ModelConfig, lengths: Sequence[int]
) -> rich.table.Table:
  """Returns the KV cache at each length, beside all-global models' caches."""
  kv = 'int8 and scales' if config.quantization.kv == 'int8' else config.dtype
  table = empty_table(
    f'KV cache of one sequence: this model ({kv}) beside all-global models'
    ' of its depth and head size'
  )
  table.caption = (
    'Third line: what decoding allocates for one row, tables included, in pages'
    f' of {paging.PAGE} slots.'
  )
  columns = [footprint.kv_caches(config, length) for length in lengths]
  table.add_column('length', justify='right')
  table.add_column('this model', justify='right')
  for other in columns[0][1:]:
    table.add_column(
      f'{other.name}\n{other.per_token:,.0f} B/token', justify='right'
    )
  for length, (own, *others) in zip(lengths, columns):
    table.add_row(
      f'{length:,}',
      f'{_bytes(own.bytes)}\n{own.per_token:,.0f} B/token\n'
      f'{_cache_bytes(config, length):,} B',
      *(
        f'{_bytes(other.bytes)}\n[bold]{other.bytes / own.bytes:,.1f}×[/bold]'
        for other in others
      ),
    )
  return table


def published_table(
  config: model_config.ModelConfig, lengths: Sequence[int]
) -> rich.table.Table:
  """Returns KV caches of published models, and how many times ours they are."""
  table = empty_table('KV cache of published models, bf16')
  table.add_column('length', justify='right')
  for name in footprint.PUBLISHED:
    table.add_column(name, justify='right')
  for length in lengths:
    own = footprint.kv_caches(config, length)[0].bytes
    table.add_row(
      f'{length:,}',
      *(
        f'{_bytes(other.bytes)}\n[bold]{other.bytes / own:,.1f}×[/bold]'
        for other in footprint.published_caches(length)
      ),
    )
  return table


def _cache_bytes(config: model_config.ModelConfig, length: int) -> int:
  """Returns the bytes that decoding allocates for a cache of one row."""
  pools = paging.pools(config.layers(), 1, length, heads=config.num_kv_heads)
  return paging.bytes_of(config, pools, 1)


def memory_table(
  config: model_config.ModelConfig,
  batch: int,
  length: int,
  fsdp: int,
  tensor: int,
) -> rich.table.Table:
  """Returns the estimated bytes of a training step, with remat and without."""
  estimates = training_memory.with_and_without_remat(
    config, batch, length, fsdp, tensor
  )
  table = empty_table(
    f'Training memory per device, estimated: fsdp {fsdp} × tensor {tensor},'
    f' microbatch of {batch} × {length:,} tokens'
  )
  table.add_column('part')
  for remat in estimates:
    here = ' (as configured)' if remat == config.remat else ''
    table.add_column(f"remat '{remat}'{here}", justify='right')
  for part in next(iter(estimates.values())):
    table.add_row(part, *(_bytes(e[part]) for e in estimates.values()))
  table.add_section()
  totals = (_bytes(sum(e.values())) for e in estimates.values())
  table.add_row('total', *totals, style='bold')
  return table


def empty_table(title: str) -> rich.table.Table:
  """Returns an empty table in the common style: left-aligned, few lines."""
  return rich.table.Table(
    title=title,
    title_justify='left',
    title_style='bold',
    caption_justify='left',
    box=rich.box.SIMPLE_HEAD,
    pad_edge=False,
  )


def _bytes(size: float) -> str:
  for unit in ('B', 'KiB', 'MiB', 'GiB'):
    if size < 1024:
      return f'{size:,.0f} {unit}' if unit == 'B' else f'{size:.3g} {unit}'
    size /= 1024
  return f'{size:,.3g} TiB'


def _magnitude(count: int) -> str:
  for unit, size in (('B', 10**9), ('M', 10**6)):
    if count >= size:
      return f'{count / size:.3g} {unit}'
  return f'{count:,}'
