"""v5e-8, eight chips, which decode 34b."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import v5e

ACCELERATOR = accelerator.Accelerator(
  name='v5e_8',
  chip=v5e.CHIP,
  hosts=2,
  devices_per_host=4,
  topology='v5e:2x4',
  mesh=config.MeshConfig(fsdp=1, tensor=8),
  flags=v5e.FLAGS,
  environment=v5e.ENVIRONMENT,
)
