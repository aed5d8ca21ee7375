"""v6e-256, a full pod of 256 chips: 13b."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import v6e

ACCELERATOR = accelerator.Accelerator(
  name='v6e_256',
  chip=v6e.CHIP,
  hosts=64,
  devices_per_host=4,
  topology='v6e:16x16',
  mesh=config.MeshConfig(fsdp=64, tensor=4),
  flags=v6e.FLAGS,
  environment=v6e.ENVIRONMENT,
)
