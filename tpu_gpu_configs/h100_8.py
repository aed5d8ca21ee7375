"""One node of eight H100: the ladder up to 3b."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import h100

ACCELERATOR = accelerator.Accelerator(
  name='h100_8',
  chip=h100.CHIP,
  hosts=1,
  devices_per_host=8,
  mesh=config.MeshConfig(fsdp=8, tensor=1),
  flags=h100.FLAGS,
  environment=h100.ENVIRONMENT,
)
