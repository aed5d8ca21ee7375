"""Holds accelerator slices, one small file each: data, without jax.

    h100_64.py → `tpu_gpu_configs.load('h100_64')`, `--accelerator=h100_64`

The number in a file's name follows the cloud's way of counting: GPUs for H100,
TensorCores for v5p (v5p_256 is 128 chips), and chips for v5e and v6e, which
have one TensorCore each. `chips/` holds the chips' figures, and `launch/` files
that start a run.
"""

import importlib
import pathlib

from kaiju_jax.costs import accelerator as accelerator_lib

_FOLDER = pathlib.Path(__file__).parent


def names() -> tuple[str, ...]:
  """Returns the names of all slices."""
  return tuple(
    sorted(p.stem for p in _FOLDER.glob('*.py') if p.stem != '__init__')
  )


def load(name: str) -> accelerator_lib.Accelerator:
  """Returns the slice of that name.

  Raises:
    ValueError: there is no such slice, or its parts disagree.
  """
  if name not in names():
    raise ValueError(
      f'accelerator={name!r}: must be one of {", ".join(names())}; or add'
      f' tpu_gpu_configs/{name}.py.'
    )
  module = importlib.import_module(f'{__name__}.{name}')
  accelerator_lib.check(module.ACCELERATOR)
  return module.ACCELERATOR


def find_chip(kind: str) -> accelerator_lib.Chip | None:
  """Returns the chip that jax calls `kind`; None for one without figures."""
  for path in (_FOLDER / 'chips').glob('[!_]*.py'):
    chip = importlib.import_module(f'{__name__}.chips.{path.stem}').CHIP
    if kind in chip.kinds:
      return chip
  return None
