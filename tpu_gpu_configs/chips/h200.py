"""H200 SXM 141 GB: an H100's processor with more and faster memory."""

import dataclasses

from . import h100

# What `nvidia-smi` shows, 143,771 MiB; NVIDIA's data sheet: 4.8 TB/s.
_BYTES = 143_771 * 2**20

_DESCRIPTION = (
  h100.CHIP.description.replace('3352320000000', '4800000000000')
  .replace('device_memory_size: 84942979072', f'device_memory_size: {_BYTES}')
  .replace('NVIDIA H100 80GB HBM3', 'NVIDIA H200')
)

CHIP = dataclasses.replace(
  h100.CHIP,
  name='H200 SXM',
  kinds=('NVIDIA H200',),
  hbm_bytes=_BYTES,
  hbm_bandwidth=4.8e12,
  description=_DESCRIPTION,
)

FLAGS, ENVIRONMENT = h100.FLAGS, h100.ENVIRONMENT
