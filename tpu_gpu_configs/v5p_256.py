"""v5p-256, 128 chips: 13b."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import v5p

ACCELERATOR = accelerator.Accelerator(
  name='v5p_256',
  chip=v5p.CHIP,
  hosts=32,
  devices_per_host=4,
  topology='v5p:4x4x8',
  mesh=config.MeshConfig(fsdp=32, tensor=4),
  flags=v5p.FLAGS,
  environment=v5p.ENVIRONMENT,
)
