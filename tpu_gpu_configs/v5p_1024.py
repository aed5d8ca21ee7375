"""v5p-1024, 512 chips: 110b."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import v5p

ACCELERATOR = accelerator.Accelerator(
  name='v5p_1024',
  chip=v5p.CHIP,
  hosts=128,
  devices_per_host=4,
  topology='v5p:8x8x8',
  mesh=config.MeshConfig(fsdp=64, tensor=8),
  flags=v5p.FLAGS,
  environment=v5p.ENVIRONMENT,
)
