"""TPU v5p: two TensorCores per chip, which JAX shows as one device."""

from kaiju_jax.costs import accelerator

CHIP = accelerator.Chip(
  name='TPU v5p',
  platform='tpu',
  kinds=('TPU v5', 'TPU v5p'),
  # cloud.google.com/tpu/docs/v5p: 95 GiB, 2,765 GB/s, 459 bf16 TFLOPS, a 3D
  # torus with 1,200 GB/s per chip, the sum of six links, both ways.
  hbm_bytes=95 * 2**30,
  hbm_bandwidth=2765e9,
  peak_bf16=459e12,
  link_bandwidth=1200e9 / 12,
  # Google's announcement (December 2023): 918 int8 TOPS.
  peak_int8=918e12,
  # No matmul's rate has been published. Our guess: 0.85 of the data sheet.
  matmul_bf16=0.85 * 459e12,
  matmul_int8=0.85 * 918e12,
)

FLAGS = {
  # Makes gathers run beside matmuls, inside the fusion that reads them.
  'xla_tpu_enable_async_collective_fusion': True,
  'xla_tpu_enable_async_collective_fusion_fuse_all_gather': True,
  'xla_tpu_enable_async_collective_fusion_multiple_steps': True,
  'xla_tpu_overlap_compute_collective_tc': True,
}

ENVIRONMENT = {}
