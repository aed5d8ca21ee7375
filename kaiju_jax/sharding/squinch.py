"""Placeholder until the collective lands."""

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.kernels.squinch import reference


def reduce_scatter(x, axis, *, dimension=0, elements='zero', header='ln6'):
  n = lax.axis_size(axis)
  rows = x.shape[0]
  flat = x.reshape(rows, -1)
  packed = reference.encode(flat, elements, header)  # [6, G, C]
  packed = packed.reshape(6, n, -1, flat.shape[1])
  packed = lax.all_to_all(packed, axis, 1, 1, tiled=True)
  parts = [reference.decode(packed[:, i], elements, header) for i in range(n)]
  return sum(parts[1:], parts[0]).reshape((rows // n,) + x.shape[1:])
