"""Kernels: each a folder whose `api.py` is the documented entry.

They import only jax (and triton, lazily), take arrays and know nothing of the
rest of the package.

Imported under any name but `kaiju_jax.kernels`, this is an empty package
without a version. `transformers` imports whatever package is called `kernels`,
and finds this folder when it runs beside it; it only asks for a version and
accepts none.
"""

if __name__ != 'kaiju_jax.kernels':
  __path__ = []

  def __getattr__(name: str):
    if name.startswith('__'):
      raise AttributeError(name)
    raise ImportError(
      f'{__name__!r} must be imported as kaiju_jax.kernels: under any other'
      ' name its modules would be loaded twice.'
    )
