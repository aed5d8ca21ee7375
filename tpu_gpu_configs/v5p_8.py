"""v5p-8, one host's four chips, which decode 34b or 110b."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import v5p

ACCELERATOR = accelerator.Accelerator(
  name='v5p_8',
  chip=v5p.CHIP,
  hosts=1,
  devices_per_host=4,
  topology='v5p:2x2x1',
  mesh=config.MeshConfig(fsdp=1, tensor=4),
  flags=v5p.FLAGS,
  environment=v5p.ENVIRONMENT,
)
