"""128 H100 in 16 nodes: 34b."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import h100

ACCELERATOR = accelerator.Accelerator(
  name='h100_128',
  chip=h100.CHIP,
  hosts=16,
  devices_per_host=8,
  mesh=config.MeshConfig(fsdp=16, tensor=8),
  flags=h100.FLAGS,
  environment=h100.ENVIRONMENT,
)
