"""A compiler mode in which the bits of a row do not depend on other rows.

The reference mode promises that text decoded in calls has the bits of one
forward pass over the row. A sum of floats has the same bits only in the same
order, and XLA's order depends on the shape of the whole array: a CPU's matrix
library computes a product's last rows by another kernel than the others. No
compiler option changes this, so `jit` avoids the matrix library:

    every product of floats is made element by element and then summed over
    the contracted dimension, which is the last one, in float32

A reduction over the last dimension has one order, whatever the other dimensions
are. Products of integers are exact in any order and stay as they are. Compiler
options switch off everything else that changes a bit:

  * YNNPACK splits a reduction by the number of rows;
  * LLVM's optimizations may turn a loop over a sum into several partial sums;
  * the algebraic simplifier reorders products by the sizes of their factors;
  * excess precision leaves out roundings to bfloat16;
  * a sum over devices has an order of its own: parts are gathered instead and
    added in the order of the devices;
  * a fused multiply-add rounds once instead of twice. x86 without AVX2 has
    none. Other processors get no fusion that could make one, so that
    compilation takes three times as long.

Compile both sides of a comparison by this `jit`, the forward pass too.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import math
import platform
from typing import Any

import jax
from jax import lax
from jax.extend import core
import jax.numpy as jnp

OPTIONS = {
  'xla_cpu_experimental_ynn_fusion_type': '',
  'xla_backend_optimization_level': 0,
  'xla_allow_excess_precision': False,
  'xla_disable_hlo_passes': 'algsimp',
}
if platform.machine() in ('x86_64', 'AMD64'):
  OPTIONS['xla_cpu_max_isa'] = 'AVX'
else:
  OPTIONS['xla_disable_hlo_passes'] += ',fusion'
# Products that are held at once before they are summed: 64 MiB of float32.
_PRODUCTS = 2**24


def jit(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
  """Returns `jax.jit` of `fn` with products in order; options are jit's own."""
  return jax.jit(in_order(fn), compiler_options=OPTIONS, **options)


def in_order(fn: Callable[..., Any]) -> Callable[..., Any]:
  """Returns `fn` with its products of floats summed in order; no gradients."""

  @functools.wraps(fn)
  def ordered(*args, **kwargs):
    closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args, **kwargs)
    results = _run(closed, jax.tree.leaves((args, kwargs)))
    return jax.tree.unflatten(jax.tree.structure(shapes), results)

  return ordered


def _run(jaxpr: Any, args: Sequence[Any]) -> list[Any]:
  """Evaluates a traced function with its products in order."""
  consts, jaxpr = getattr(jaxpr, 'consts', ()), getattr(jaxpr, 'jaxpr', jaxpr)
  values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args)))

  def read(atom):
    return atom.val if isinstance(atom, core.Literal) else values[atom]

  for equation in jaxpr.eqns:
    results = _apply(equation, [read(atom) for atom in equation.invars])
    values.update(zip(equation.outvars, results))
  return [read(atom) for atom in jaxpr.outvars]


# The fields of an equation with the functions that it runs. Those of a call are
# inlined, those of a loop or a branch replaced.
_CALLS = {
  'jit': 'jaxpr',
  'closed_call': 'call_jaxpr',
  'remat2': 'jaxpr',
  'custom_jvp_call': 'call_jaxpr',
  'custom_vjp_call': 'call_jaxpr',
}
_BODIES = {
  'scan': ('jaxpr',),
  'while': ('cond_jaxpr', 'body_jaxpr'),
  'cond': ('branches',),
}


def _apply(equation, args: list[Any]) -> Sequence[Any]:
  """Evaluates one equation."""
  name, params = equation.primitive.name, dict(equation.params)
  if name == 'dot_general' and _is_float(equation.outvars[0]):
    return [_product(*args, params['dimension_numbers'], equation.outvars[0])]
  if name in ('psum', 'reduce_scatter') and _is_float(equation.outvars[0]):
    return [_total(name, x, params) for x in args]
  if name in _CALLS:
    return _run(params[_CALLS[name]], args)
  for field in _BODIES.get(name, ()):
    params[field] = _list_bodies(params[field])
  results = equation.primitive.bind(*args, **params)
  return results if equation.primitive.multiple_results else [results]


def _total(name: str, x: jax.Array, params) -> jax.Array:
  """Returns a sum over devices in their order, or this device's part of it."""
  axes = params['axes'] if name == 'psum' else params['axis_name']
  total, *others = lax.all_gather(x, axes)
  for other in others:
    total = total + other
  if name == 'psum':
    return total
  axis = params['scatter_dimension']
  size = total.shape[axis] // params['axis_size']
  begin = lax.axis_index(axes) * size
  return lax.dynamic_slice_in_dim(total, begin, size, axis)


def _list_bodies(jaxpr: Any) -> Any:
  """Returns a loop's body, or a condition's branches, in order."""
  if isinstance(jaxpr, tuple):
    return tuple(map(_list_bodies, jaxpr))
  return jax.make_jaxpr(lambda *args: _run(jaxpr, args))(*jaxpr.in_avals)


def _is_float(variable) -> bool:
  return jnp.issubdtype(variable.aval.dtype, jnp.floating)


def _product(x: jax.Array, y: jax.Array, dimensions, out) -> jax.Array:
  """Returns `lax.dot_general` in order; `out` has its result's dtype."""
  (x_sums, y_sums), (x_batch, y_batch) = dimensions
  x_BIC, x_kept = _matrices(x, x_batch, x_sums)
  y_BJC, y_kept = _matrices(y, y_batch, y_sums)
  B, I, C = x_BIC.shape
  J = y_BJC.shape[1]

  def product(rows_BIC):
    products_BIJC = rows_BIC[:, :, None] * y_BJC[:, None]
    return jnp.sum(products_BIJC, axis=-1)

  block = max(1, _PRODUCTS // (B * J * C))
  if block >= I:
    sums_BIJ = product(x_BIC)
  else:
    padded = jnp.pad(x_BIC, ((0, 0), (0, -I % block), (0, 0)))
    blocks = jnp.moveaxis(padded.reshape(B, -1, block, C), 1, 0)
    sums = jnp.moveaxis(lax.map(product, blocks), 0, 1)
    sums_BIJ = sums.reshape(B, -1, J)[:, :I]
  batch = tuple(x.shape[axis] for axis in x_batch)
  return sums_BIJ.reshape(*batch, *x_kept, *y_kept).astype(out.aval.dtype)


def _matrices(x: jax.Array, batch: Sequence[int], sums: Sequence[int]):
  """Returns x as float32 [batch, kept, summed], and the kept dimensions."""
  kept = [axis for axis in range(x.ndim) if axis not in (*batch, *sums)]
  sizes = [[x.shape[axis] for axis in axes] for axes in (batch, kept, sums)]
  x = x.astype(jnp.float32).transpose(*batch, *kept, *sums)
  return x.reshape([math.prod(part) for part in sizes]), sizes[1]
