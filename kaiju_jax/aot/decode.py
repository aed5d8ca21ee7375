"""Compiles a step of decoding on a slice's devices, and reads what it sends.

    figures = decode.compile_step(config, accelerator)

A step appends one token to each of `rows` texts. The compiler plans bytes and
collectives, so both are facts; nothing is allocated and nothing was timed.
`problems` names what a step must not do: send weights or pages, gather floats
between projections, copy a pool, widen codes.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp

from kaiju_jax.aot import build
from kaiju_jax.aot import devices as devices_lib
from kaiju_jax.aot.hlo import collectives as collectives_lib
from kaiju_jax.aot.hlo import matmuls as matmuls_lib
from kaiju_jax.costs import accelerator as accelerator_lib
from kaiju_jax.costs import mesh_decoding
from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.device import placement
from kaiju_jax.decoding.device import weights
from kaiju_jax.model import config as model_config
from kaiju_jax.model import paging
from kaiju_jax.model import rotary
from kaiju_jax.model import transformer
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import mesh as mesh_lib

_FLOATS = 'f64', 'f32', 'bf16', 'f16'


def compile_step(
  config: model_config.ModelConfig,
  accelerator: accelerator_lib.Accelerator,
  rows: int = mesh_decoding.ROWS,
  length: int = mesh_decoding.LENGTHS[0],
) -> dict[str, Any]:
  """Compiles a step of `rows` texts of `length` tokens; returns its figures.

  Raises:
    devices.MissingPlugin: names the package that is missing.
    ValueError: the slice cannot decode the model.
  """
  count = accelerator.devices
  mesh = mesh_lib.make(
    sharding_config.MeshConfig(tensor=count), devices_lib.find(accelerator)
  )
  page = mesh_decoding.MeshPlan(config, accelerator).page
  place = placement.Place(mesh, config, 'fast')
  pools = paging.pools(
    *(config.layers(), rows, length),
    page=page,
    heads=config.num_kv_heads,
    devices=count,
  )
  network = extend.Network(
    transformer.Transformer(config, unstacked=True), pools, devices=count
  )
  arguments = _arguments(config, place, pools, rows, length)
  step = place.jit(functools.partial(extend.text, network), donate_argnums=1)
  program = build.build(step, arguments, accelerator.flags)
  found = build.collectives(program, mesh)
  sizes = [x.size * x.dtype.itemsize // count for x in _pages(arguments[1])]
  memory = program.memory
  layers = len(config.layers())
  launches = collectives_lib.launches(program.module, mesh.shape)
  return {
    'rows': rows,
    'compile_seconds': program.compile_seconds,
    'argument_bytes': memory.arguments,
    'temporary_bytes': memory.temporary,
    'needed_bytes': memory.needed,
    'device_bytes': accelerator.chip.hbm_bytes,
    'page_bytes': sum(sizes),
    'aliased_bytes': memory.aliased,
    'wire': {
      f'{kind} {dtype}': sent / rows / layers
      for (kind, dtype, _), (_, sent) in collectives_lib.totals(found).items()
    },
    'launches': {kind: n / layers for kind, n in launches.items()},
    'kernels': matmuls_lib.kernels(program.module),
    'matmuls': matmuls_lib.totals(build.matmuls(program)),
    'problems': [
      *problems(program, found, config, rows, arguments[1], count),
      *(f'the compiler says: {line}' for line in program.complaints),
    ],
  }


def _arguments(config, place, pools, rows, length) -> Sequence[Any]:
  """Returns the shapes of a step's arguments, with their places."""

  def whole(x):
    return jax.tree.map(
      lambda one, at: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=at),
      x,
      placement.shardings(place.mesh, x),
    )

  def make_params(masters):
    ready = weights.ready(masters, config, devices=place.devices)
    return {**ready, transformer.ROTARY: rotary.tables(config, length)}

  cache = functools.partial(cache_lib.make, config, pools, rows)
  shapes = transformer.parameter_shapes(config)
  integers = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
  rings = {
    kind: integers((rows, pool.row_pages))
    for kind, pool in pools.items()
    if pool.window is not None
  }
  return tuple(
    whole(x)
    for x in (
      jax.eval_shape(make_params, shapes),
      jax.eval_shape(lambda: place.make_cache(cache)),
      rings,
      integers((rows,)),
      integers((rows, 1)),
      integers((rows,)),
    )
  )


def _pages(cache: Any) -> list[Any]:
  """Returns the arrays of a cache's pools."""
  return jax.tree.leaves([(x.k, x.v) for x in cache.kinds.values()])


def problems(
  program: build.Program,
  found: Sequence[collectives_lib.Collective],
  config: model_config.ModelConfig,
  tokens: int,
  cache: Any,
  devices: int,
) -> Iterator[str]:
  """Yields a line for all that a step of decoding must not do.

  Args:
    program: the compiled step.
    found: its collectives.
    config: the model's config.
    tokens: of all texts in the step together.
    cache: the cache that it takes on all devices, arrays or their shapes.
    devices: those of the mesh.
  """
  heads, K = config.num_heads, config.head_dim
  # Activations of a layer: the widest are outputs in float32 with their lse.
  widest = 4 * tokens * max(config.d_model, heads * (K + 1))
  gathers = 0
  for x in found:
    what = f'{x.kind} of {x.dtype}{list(x.shape)}'
    received = x.result_bytes * (x.group if x.kind == 'reduce-scatter' else 1)
    if received > widest:
      yield f'{what} is more than activations: weights or pages.'
    if not x.is_sure:
      yield f'{what} is in a loop of unknown length.'
    is_gather = x.kind == 'all-gather' and x.dtype in _FLOATS
    gathers += x.times * (is_gather and x.size >= tokens * config.d_model)
  # That of the final hidden states.
  if gathers > 1:
    yield f'{gathers} gathers of float activations: codes should cross.'
  pages = _pages(cache)
  held = sum(x.size * x.dtype.itemsize for x in pages) // devices
  if program.memory.aliased < 0.99 * held:
    yield f'{program.memory.aliased:,} of {held:,} bytes of pages are donated.'
  for shape in {(x.shape[0] // devices, *x.shape[1:]) for x in pages}:
    size = ','.join(map(str, shape))
    copies = re.findall(
      rf'\[{size}\]\S* (?:copy|copy-start|transpose)\(', program.text
    )
    if copies:
      yield f'{len(copies)} copies of a pool [{size}].'
  if any(x.is_widened for x in build.matmuls(program)):
    yield 'int8 codes are multiplied as something wider.'
