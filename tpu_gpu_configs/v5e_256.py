"""v5e-256, a full pod of 256 chips: 3b."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import v5e

ACCELERATOR = accelerator.Accelerator(
  name='v5e_256',
  chip=v5e.CHIP,
  hosts=64,
  devices_per_host=4,
  topology='v5e:16x16',
  mesh=config.MeshConfig(fsdp=64, tensor=4),
  flags=v5e.FLAGS,
  environment=v5e.ENVIRONMENT,
)
