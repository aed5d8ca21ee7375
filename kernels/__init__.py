"""Kernels for accelerators, one folder each, with `api.py` as the entry.

They take arrays, import only jax (and triton, lazily) and import nothing from
the rest of the package.

Under any other name than `kaiju_jax.kernels`, this is an empty package without
a version. The reason is `transformers`: it imports any package named `kernels`,
and finds this folder if it runs beside it. It only reads the version, and
accepts that there is none.
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
