"""Checks that this JAX knows an accelerator's XLA flags."""

import jax
import jax.numpy as jnp

from kaiju_jax.aot import build
from kaiju_jax.aot import devices
from kaiju_jax.costs import accelerator as accelerator_lib


def check(accelerator: accelerator_lib.Accelerator) -> None:
  """Refuses XLA flags that this JAX does not know.

  An unknown flag in XLA_FLAGS ends the process; this function raises an error
  before that. Only libtpu knows the flags of a TPU, so a TPU's slice needs it.

  Raises:
    ValueError: names the slice, the flag and JAX's version.
    devices.MissingPlugin: names the packages that are missing.
  """
  if not accelerator.flags:
    return
  device = jax.devices('cpu')[0]  # The CPU's compiler knows the GPU's flags.
  if accelerator.chip.platform == 'tpu':
    device = devices.find(accelerator)[0]
  x = jax.ShapeDtypeStruct(
    (8, 128),
    jnp.float32,
    sharding=jax.sharding.SingleDeviceSharding(device),
  )
  lowered = jax.jit(lambda x: x + 1).lower(x)
  for name, value in accelerator.flags.items():
    try:
      with build.bypass_cache():
        lowered.compile(compiler_options={name: value})
    except jax.errors.JaxRuntimeError as error:
      reason = str(error).partition(': ')[2]
      raise ValueError(
        f'accelerator {accelerator.name}: flag {name}={value}: JAX'
        f' {jax.__version__} says: {reason}'
      ) from error
