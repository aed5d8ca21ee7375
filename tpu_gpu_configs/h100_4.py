"""Half a node: four H100, which decode 34b or 110b."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import h100

ACCELERATOR = accelerator.Accelerator(
  name='h100_4',
  chip=h100.CHIP,
  hosts=1,
  devices_per_host=4,
  mesh=config.MeshConfig(fsdp=1, tensor=4),
  flags=h100.FLAGS,
  environment=h100.ENVIRONMENT,
)
