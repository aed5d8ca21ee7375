"""What rates do a large matmul and a large copy reach on this device?"""

from typing import Any

from kaiju_jax.kernels import ceilings as ceilings_lib

from . import setting as setting_lib


def _sizes(setting) -> dict[str, int]:
  if setting.dry:
    return {'size': 64, 'mebibytes': 1}
  return {'size': 8192, 'mebibytes': 1024}


def cases(setting: setting_lib.Setting) -> dict[str, tuple[float, None]]:
  """Returns the one case."""
  del setting
  return {'rates': (15, None)}


def measure(setting: setting_lib.Setting, case: None) -> dict[str, Any]:
  """Returns operations/s and bytes/s, with their spreads."""
  del case
  return ceilings_lib.spreads(**_sizes(setting), repeats=setting.repeats)
