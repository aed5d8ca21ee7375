"""Loads the accelerator slices that `tpu_gpu_configs/` describes.

The package's wheel does not contain that folder. Imports no jax.
"""

from kaiju_jax.costs import accelerator as accelerator_lib


def load(name: str) -> accelerator_lib.Accelerator:
  """Returns a slice by its name.

  Raises:
    ValueError: the folder is not here, or has no such slice.
  """
  try:
    import tpu_gpu_configs
  except ImportError as error:
    raise ValueError(
      f'--accelerator={name}: tpu_gpu_configs/ is not here; start from the'
      " repository's root."
    ) from error
  return tpu_gpu_configs.load(name)
