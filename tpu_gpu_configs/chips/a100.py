"""A100 SXM4 80 GB: for sums on a fleet of them; no slice is built of it."""

from kaiju_jax.costs import accelerator

CHIP = accelerator.Chip(
  name='A100 SXM',
  platform='cuda',
  kinds=('NVIDIA A100-SXM4-80GB',),
  # NVIDIA's A100 data sheet: 80 GB, 2,039 GB/s, 312 bf16 TFLOPS and 624 int8
  # TOPS dense.
  hbm_bytes=80e9,
  hbm_bandwidth=2039e9,
  peak_bf16=312e12,
  peak_int8=624e12,
  # Our guess: 0.85 of the data sheet.
  matmul_bf16=0.85 * 312e12,
  matmul_int8=0.85 * 624e12,
)
