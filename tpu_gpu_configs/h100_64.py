"""64 H100 in 8 nodes: 13b."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import h100

ACCELERATOR = accelerator.Accelerator(
  name='h100_64',
  chip=h100.CHIP,
  hosts=8,
  devices_per_host=8,
  mesh=config.MeshConfig(fsdp=8, tensor=8),
  flags=h100.FLAGS,
  environment=h100.ENVIRONMENT,
)
