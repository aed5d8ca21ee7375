"""4,096 H100 in 512 nodes: 110b, D/fsdp = 24 rows per device."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import h100

ACCELERATOR = accelerator.Accelerator(
  name='h100_4096',
  chip=h100.CHIP,
  hosts=512,
  devices_per_host=8,
  mesh=config.MeshConfig(fsdp=512, tensor=8),
  flags=h100.FLAGS,
  environment=h100.ENVIRONMENT,
)
