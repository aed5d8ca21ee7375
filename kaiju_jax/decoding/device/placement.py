"""Places the arrays of one decoder on a mesh, and runs its calls there.

    params       each weight by the letters of its name (`rules.IN_USE`): F, H
                 and V are split over the axis `tensor`, D is whole
    cache        the pools of keys and values split: each device has its stripe
                 of every page (`model/paging.py`); tables and lengths are whole
    all others   whole on every device: tokens, rings, states, hidden states

A decoder's functions run in a manual `shard_map`, so that each device computes
with its own parts and the collectives of `sharding/collectives.py`:

    place = Place(make(4), config, mode)    the first four devices
    place.put(x)                            params, a cache or anything else
    place.make_cache(make)                  `make()` gives that of a device
    place.jit(function, donate_argnums=1)

`function(*arguments)` returns a result that is whole on every device, or, if it
is given a cache to take, (result, cache).
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np

from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import reference
from kaiju_jax.decoding.device import weights
from kaiju_jax.kernels import dispatch
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules

_SPLIT, _WHOLE = PartitionSpec('tensor'), PartitionSpec()
_BLOCKS = 'blocks'
# XLA's CPU breaks a sum or a maximum of more than 32 values into two, which it
# fuses with nothing: a third of all operations of a step.
_UNBROKEN = {'xla_disable_hlo_passes': 'tree_reduction_rewriter'}


def make(tensor: int) -> jax.sharding.Mesh:
  """Returns the mesh of the first `tensor` devices; ValueError: too few."""
  devices = jax.devices()
  if not 1 <= tensor <= len(devices):
    fault = (
      f'mesh.tensor={tensor}: must be 1…{len(devices)}, as many as there are'
      f' devices ({devices[0].platform})'
    )
    if devices[0].platform == 'cpu':
      count = f'--xla_force_host_platform_device_count={tensor}'
      fault += f'; XLA_FLAGS={count} simulates more'
    raise ValueError(f'{fault}.')
  config = sharding_config.MeshConfig(tensor=tensor)
  return mesh_lib.make(config, devices[:tensor])


def check(
  mesh: jax.sharding.Mesh,
  config: model_config.ModelConfig,
  is_reference: bool = False,
) -> int:
  """Returns the devices of a mesh that can decode a model; or a ValueError.

  It names what the mesh cannot divide, or what it does not do yet.
  """
  widths = mesh_lib.config_of(mesh)
  count = widths.tensor
  if widths.fsdp != 1:
    raise ValueError(
      f'mesh.fsdp={widths.fsdp}: must be 1, because a decoder splits weights'
      ' and pages over the axis tensor alone.'
    )
  if count == 1:
    return count
  model_config.check_tensor(config, count)
  implementation = config.quantization.matmul_implementation
  if is_reference and implementation:
    raise ValueError(
      f'model.quantization.matmul_implementation={implementation!r}: must be'
      " '' for mode='reference' on several devices."
    )
  return count


def specs(mesh: jax.sharding.Mesh, x: Any) -> Any:
  """Returns the specs of an argument, a tree that may end above x's leaves.

  `x` are parameters of `weights.ready`, a cache, or anything else; arrays or
  their shapes. Raises ValueError: the mesh does not divide a weight.
  """
  if isinstance(x, cache_lib.Cache):
    kinds = {
      name: cache_lib.Kind(_SPLIT, _SPLIT, *[_WHOLE] * 5) for name in x.kinds
    }
    return cache_lib.Cache(kinds, _WHOLE)
  if not isinstance(x, dict) or _BLOCKS not in x:
    return _WHOLE
  named = {name: one for name, one in x.items() if name != transformer.ROTARY}
  placed = rules.shardings(named, mesh, rules.IN_USE)
  found = jax.tree.map(lambda one: one.spec, placed)
  if transformer.ROTARY in x:
    found[transformer.ROTARY] = _WHOLE
  return found


def shardings(mesh: jax.sharding.Mesh, x: Any) -> Any:
  """Returns the sharding of each leaf of an argument; see `specs`."""
  found = jax.tree.map(
    lambda spec: jax.sharding.NamedSharding(mesh, spec),
    specs(mesh, x),
    is_leaf=lambda one: isinstance(one, PartitionSpec),
  )
  return jax.tree.broadcast(found, x)


def put(mesh: jax.sharding.Mesh, x: Any) -> Any:
  """Returns params, a cache or anything else on the mesh's devices."""
  return jax.device_put(x, shardings(mesh, x))


def jit(
  mesh: jax.sharding.Mesh,
  function: Callable[..., Any],
  donate_argnums: int | tuple[int, ...] = (),
  is_reference: bool = False,
) -> Callable[..., Any]:
  """Returns `function` compiled for the mesh; see the module.

  `is_reference` compiles as `reference.jit` does. Several arguments may be
  donated; those that lie where a result does are reused.
  """
  if is_reference:
    function = reference.in_order(function)
  donated = np.ravel(donate_argnums)

  def placed(*arguments):
    found = tuple(specs(mesh, x) for x in arguments)
    caches = [
      x
      for place, x in enumerate(found)
      if place in donated and isinstance(x, cache_lib.Cache)
    ]
    return jax.shard_map(
      function,
      mesh=mesh,
      in_specs=found,
      out_specs=(_WHOLE, *caches) if caches else _WHOLE,
      check_vma=False,
    )(*arguments)

  return jax.jit(
    placed,
    donate_argnums=donate_argnums,
    compiler_options=reference.OPTIONS
    if is_reference
    else _fast_options(mesh.devices.flat[0].platform),
  )


def _fast_options(platform: str) -> dict[str, str] | None:
  """Returns the compiler's options for a platform in the fast mode."""
  return _UNBROKEN if platform == 'cpu' else None


class Place:
  """The mesh of a decoder, or its one device."""

  def __init__(
    self,
    mesh: jax.sharding.Mesh | None,
    config: model_config.ModelConfig,
    mode: str,
  ):
    """Raises ValueError: the mesh cannot decode the model (`check`)."""
    self._config = config
    self._is_reference = mode == 'reference'
    self.devices: int = 1
    if mesh is not None:
      self.devices = check(mesh, config, self._is_reference)
    # A mesh of one device runs the program of one device.
    self.mesh: jax.sharding.Mesh | None = mesh if self.devices > 1 else None
    # Compiles for one device by the mode.
    self.plain_jit: Any = (
      reference.jit
      if self._is_reference
      else functools.partial(
        jax.jit, compiler_options=_fast_options(dispatch.platform())
      )
    )

  def jit(
    self, function: Callable[..., Any], donate_argnums: Any = ()
  ) -> Callable[..., Any]:
    """Returns `function` compiled by the mode, for the mesh if there is one."""
    if self.mesh is None:
      return self.plain_jit(function, donate_argnums=donate_argnums)
    return jit(self.mesh, function, donate_argnums, self._is_reference)

  def make_ready(self, mode: str) -> Callable[..., Any]:
    """Returns (params, replica=…) → what `put` takes (`weights.make_ready`)."""
    return weights.make_ready(self._config, self.plain_jit, mode, self.devices)

  def put(self, x: Any) -> Any:
    """Returns params, a cache or anything else, committed to its devices.

    Otherwise each call would compile twice: for the cache as made, and as
    returned by a call.
    """
    if self.mesh is not None:
      return put(self.mesh, x)
    (device,) = jnp.zeros(()).devices()
    return jax.device_put(x, device)

  def make_cache(self, make: Callable[[], cache_lib.Cache]) -> cache_lib.Cache:
    """Returns a cache of which each device makes its part."""
    if self.mesh is None:
      return self.put(make())
    found = specs(self.mesh, jax.eval_shape(make))
    made = jax.shard_map(
      make, mesh=self.mesh, in_specs=(), out_specs=found, check_vma=False
    )
    return jax.jit(made)()
