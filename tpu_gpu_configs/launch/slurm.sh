#!/usr/bin/env bash
# Starts a run on H100 nodes under Slurm, one process per node:
#
#     sbatch --nodes=8 tpu_gpu_configs/launch/slurm.sh h100_64 \
#       experiments/configs/sizes.py:13b /shared/runs/13b \
#       --config.data.path=/shared/text \
#       --config.data.tokenizer=/shared/tokenizer.json
#
# --nodes is the slice's `hosts`. jax.distributed.initialize reads the address of
# the first process and every rank from Slurm's own variables. All nodes must see
# the workdir. When a node fails, the job ends; the same command resumes it.
#
#SBATCH --job-name=kaiju
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --exclusive
#SBATCH --signal=TERM@120
#SBATCH --kill-on-invalid-dep=yes
set -euo pipefail

if [[ $# -lt 3 ]]; then
  echo "usage: sbatch --nodes=N $0 ACCELERATOR CONFIG WORKDIR [FLAG…]" >&2
  exit 2
fi
accelerator=$1 config=$2 workdir=$3
shift 3

# As in tpu_gpu_configs/chips/h100.py.
export XLA_PYTHON_CLIENT_MEM_FRACTION=0.92
# Under Slurm JAX expects one process per GPU; here one process has all eight.
export JAX_LOCAL_DEVICE_IDS=0,1,2,3,4,5,6,7

exec srun --kill-on-bad-exit=1 python -m experiments.train \
  --config="$config" --workdir="$workdir" \
  --accelerator="$accelerator" --multihost "$@"
