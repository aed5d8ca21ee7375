"""v5p-128, 64 chips: 3b."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import v5p

ACCELERATOR = accelerator.Accelerator(
  name='v5p_128',
  chip=v5p.CHIP,
  hosts=16,
  devices_per_host=4,
  topology='v5p:4x4x4',
  mesh=config.MeshConfig(fsdp=16, tensor=4),
  flags=v5p.FLAGS,
  environment=v5p.ENVIRONMENT,
)
