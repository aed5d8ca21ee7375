"""Report what the compiler says of a full-size step on a slice elsewhere.

    python -m experiments.aot_report --preset=110b --accelerator=h100_512 \\
        [--json=PATH] [--arm=ternary] [--fsdp=8 --tensor=8] [--nocompile]

Compiles the training step for the accelerator file's devices and prints what
it needs and sends: seconds of compilation, bytes of memory against the
device's, bytes on the wire by collective, dtype and axis, matmuls by dtype.
Beside it stands a model of the step's time by arithmetic, for int8 and Squinch
each switched on and off; `--nocompile` prints that alone.

Facts: bytes, operations, dtypes. Estimates: seconds on the device, from the
figures in `tpu_gpu_configs/chips/`. No accelerator is needed, only its
compiler: pip install 'kaiju_jax[aot-gpu]' or 'kaiju_jax[aot-tpu]'.

    python -m experiments.aot_report --kernels --accelerator=v5e_256 --heads=12

compiles a TPU's attention kernels of one layer on 32,768 tokens instead, and
prints each stretch of their code: cycles by the compiler's schedule, and how
much of a unit's slots they fill. The two long ones in a kernel are a visit of a
block of keys (or of rows) with its mask and without. Nothing was timed.

    python -m experiments.aot_report --decode --preset=110b --accelerator=h100_4

prints the arithmetic of decoding on all devices of a slice: memory, texts that
fit, bytes on the wire, launches and milliseconds of a step, beside replicated
keys and values, tensor-parallel GQA-8 and all-reduces. It then compiles a step
of 64 texts, or of `--rows`, and prints what the program sends; `--layers` says
how deep.

Ends with status 1 where the step does not fit, donates nothing, sends what it
must not, or the compiler complains.
"""

from collections.abc import Sequence
import sys

from kaiju_jax.experiments.studies import plan_settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

_OF_A_STEP = (
  *('preset', 'config', 'json', 'arm', 'fsdp', 'tensor', 'length'),
  *('microbatches', 'compile'),
)
_OF_TRAINING = 'config', 'fsdp', 'tensor', 'length', 'microbatches'
FLAGS = flags.flags_of(settings_lib.AotReport)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  FLAGS.refuse_beside('config', 'arm', 'length', 'rows', 'microbatches')
  from kaiju_jax.experiments.studies import aot_report

  if settings.kernels:
    FLAGS.refuse_beside('kernels', 'decode', 'layers', *_OF_A_STEP)
    aot_report.show_kernels(settings)
  elif settings.decode:
    FLAGS.refuse_beside('decode', *_OF_TRAINING)
    if not aot_report.show_decoding(settings):
      raise SystemExit(1)
  elif not aot_report.run(settings):
    raise SystemExit(1)


if __name__ == '__main__':
  command.run(main, ImportError, compiles='--kernels' not in sys.argv)
