"""Accelerator slices, one small file each: data, which imports no jax.

    h100_64.py → `tpu_gpu_configs.load('h100_64')`, `--accelerator=h100_64`

The number in a file's name counts as its cloud counts: GPUs for H100,
TensorCores for v5p (v5p_256 is 128 chips), and chips for v5e and v6e, which
have one TensorCore each. The public figures are in `chips/`, the files that
start a run in `launch/`.
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
