"""Kernels: each a folder whose `api.py` is the documented entry.

They import only jax (and triton, lazily), take arrays and know nothing of the
rest of the package.
"""

if __name__ != 'kaiju_jax.kernels':
  raise ImportError(
    f'{__name__!r} must be imported as kaiju_jax.kernels: under any other name'
    ' its modules would be loaded twice.'
  )
