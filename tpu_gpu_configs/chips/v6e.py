"""TPU v6e, Trillium: one TensorCore per chip."""

from kaiju_jax.costs import accelerator

from . import v5p

CHIP = accelerator.Chip(
  name='TPU v6e',
  platform='tpu',
  kinds=('TPU v6 lite', 'TPU v6e'),
  # cloud.google.com/tpu/docs/v6e: 32 GB, 1,640 GB/s, 918 bf16 TFLOPS, 1,836
  # int8 TOPS, a 2D torus with 800 GB/s per chip, the sum of four links, both
  # ways.
  hbm_bytes=32e9,
  hbm_bandwidth=1640e9,
  peak_bf16=918e12,
  peak_int8=1836e12,
  link_bandwidth=800e9 / 8,
  # Our guess: 0.85 of the data sheet.
  matmul_bf16=0.85 * 918e12,
  matmul_int8=0.85 * 1836e12,
)

# Those of v5p; and matmuls of these widths may use 96 of the 128 MiB of VMEM.
FLAGS = v5p.FLAGS | {'xla_tpu_scoped_vmem_limit_kib': 98304}
ENVIRONMENT = {}
