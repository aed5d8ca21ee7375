"""Eight devices cut from one processor: the mesh that the tests run on."""

from kaiju_jax.costs import accelerator
from kaiju_jax.sharding import config

from .chips import cpu

ACCELERATOR = accelerator.Accelerator(
  name='cpu_8',
  chip=cpu.CHIP,
  hosts=1,
  devices_per_host=8,
  mesh=config.MeshConfig(fsdp=4, tensor=2),
  environment={'XLA_FLAGS': '--xla_force_host_platform_device_count=8'},
)
