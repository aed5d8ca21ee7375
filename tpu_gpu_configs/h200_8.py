"""One node of eight H200."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import h200

ACCELERATOR = accelerator.Accelerator(
  name='h200_8',
  chip=h200.CHIP,
  hosts=1,
  devices_per_host=8,
  mesh=config.MeshConfig(fsdp=8, tensor=1),
  flags=h200.FLAGS,
  environment=h200.ENVIRONMENT,
)
