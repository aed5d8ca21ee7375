"""H100 SXM5 80 GB."""

from kaiju_jax.costs import accelerator

# `GpuTargetConfigProto` of an H100 80GB HBM3. The type is internal to XLA, and
# a later version may rename its fields.
_DESCRIPTION = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""

CHIP = accelerator.Chip(
  name='H100 SXM',
  platform='cuda',
  kinds=('NVIDIA H100 80GB HBM3',),
  # From XLA's own description of the device (80 GB HBM3, less ECC).
  hbm_bytes=84_942_979_072,
  # NVIDIA's H100 data sheet: 3.35 TB/s, 989.4 bf16 TFLOPS and 1,978.9 int8
  # TOPS dense, NVLink 900 GB/s both ways together.
  hbm_bandwidth=3.35e12,
  peak_bf16=989.4e12,
  peak_int8=1978.9e12,
  node_bandwidth=450e9,
  # S. Bekman, ML Engineering, "Maximum Achievable Matmul FLOPS": the best bf16
  # shape reaches 794.5 TFLOPS, the best fp8 one 1,402.6. On the data sheet int8
  # has fp8's rate, on the same tensor cores. Our guess is that it also reaches
  # what fp8 reaches.
  matmul_bf16=794.5e12,
  matmul_int8=1402.6e12,
  # DGX H100: eight ConnectX-7 of 400 Gb/s per node, one per GPU. Some clouds
  # have half as much.
  network_bandwidth=50e9,
  description=_DESCRIPTION,
)

FLAGS = {
  # Starts a layer's gather while the previous layer computes. The whole design
  # relies on this; new versions do it by default.
  'xla_gpu_enable_latency_hiding_scheduler': True,
  # Codes, scales and small vectors of one layer become one NCCL call. A larger
  # threshold would join layers, which could then not overlap.
  'xla_gpu_all_gather_combine_threshold_bytes': 128 << 20,
  'xla_gpu_reduce_scatter_combine_threshold_bytes': 128 << 20,
  'xla_gpu_all_reduce_combine_threshold_bytes': 128 << 20,
}

ENVIRONMENT = {
  # The default of 0.75 wastes a fifth of the device. NCCL and the CUDA context
  # need the remaining 0.08.
  'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.92',
}
