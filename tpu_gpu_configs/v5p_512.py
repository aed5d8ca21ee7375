"""v5p-512, 256 chips: 34b."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import v5p

ACCELERATOR = accelerator.Accelerator(
  name='v5p_512',
  chip=v5p.CHIP,
  hosts=64,
  devices_per_host=4,
  topology='v5p:4x8x8',
  mesh=config.MeshConfig(fsdp=32, tensor=8),
  flags=v5p.FLAGS,
  environment=v5p.ENVIRONMENT,
)
