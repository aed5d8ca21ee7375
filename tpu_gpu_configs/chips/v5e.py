"""TPU v5e: one TensorCore per chip."""

from kaiju_jax.costs import accelerator

from . import v5p

CHIP = accelerator.Chip(
  name='TPU v5e',
  platform='tpu',
  kinds=('TPU v5 lite', 'TPU v5e'),
  # cloud.google.com/tpu/docs/v6e, whose table lists v5e too: 16 GB, 819 GB/s,
  # 197 bf16 TFLOPS, 393 int8 TOPS, a 2D torus with 1,600 Gb/s per chip, the sum
  # of four links, one way.
  hbm_bytes=16e9,
  hbm_bandwidth=819e9,
  peak_bf16=197e12,
  peak_int8=393e12,
  link_bandwidth=1600e9 / 8 / 4,
  # Our guess: 0.85 of the data sheet.
  matmul_bf16=0.85 * 197e12,
  matmul_int8=0.85 * 393e12,
)

FLAGS = v5p.FLAGS
ENVIRONMENT = {}
