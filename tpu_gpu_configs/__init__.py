"""Accelerator slices, one small file each: data, which imports no jax.

    h100_64.py → `tpu_gpu_configs.load('h100_64')`, `--accelerator=h100_64`

A file's name counts as its cloud counts: GPUs are GPUs, v5p counts TensorCores
(v5p_256 is 128 chips), v5e and v6e have one TensorCore a chip. The public
figures stand in `chips/`, what starts a run in `launch/`.
"""

import importlib
import pathlib

from kaiju_jax.costs import accelerator as accelerator_lib

_FOLDER = pathlib.Path(__file__).parent


def names() -> tuple[str, ...]:
  """Returns the slices that there are."""
  return tuple(
    sorted(p.stem for p in _FOLDER.glob('*.py') if p.stem != '__init__')
  )


def load(name: str) -> accelerator_lib.Accelerator:
  """Returns the slice of that name.

  Raises:
    ValueError: no such file, or one whose parts disagree.
  """
  if name not in names():
    raise ValueError(
      f'accelerator={name!r}: must be one of {", ".join(names())}; or add'
      f' tpu_gpu_configs/{name}.py.'
    )
  module = importlib.import_module(f'{__name__}.{name}')
  accelerator_lib.check(module.ACCELERATOR)
  return module.ACCELERATOR
