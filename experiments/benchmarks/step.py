"""Compare training steps: with plain linen's, and with a loss in chunks.

    python -m experiments.benchmarks.step [--table=short,memory]
    python -m experiments.benchmarks.step --table=vocabulary [--chunks=64,256]

The first three tables compare whole optimizer steps in float32 with those of
`parts/plain_model.py` (nn.Dense, dense masks), side by side in one process:

    short       the tiny configuration
    long        one row of 8,192, window 256, 6:1, per-layer remat on both
                sides; a dense step took a minute on 4 cores, and each round
                has two
    memory      temporary bytes of both compiled steps, to length 32,768
    vocabulary  loss and gradient of a one-layer model with a large vocabulary,
                with the logits of all tokens at once (`objective.chunk=0`) and
                of a chunk of tokens at a time. The largest chunk, all tokens in
                one, is the contrast: it saves nothing

The first three are compiled with XLA's memory-minded scheduler: the CPU's usual
one recomputes several layers at once, and asks 23 GiB for the dense step at
8,192.
"""

from collections.abc import Sequence
import dataclasses
import os
from typing import Literal

from kaiju_jax.reporting import report
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

_SCHEDULER = '--xla_cpu_enable_concurrency_optimized_scheduler=false'


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is compared."""

  # Tables.
  table: tuple[Literal['short', 'long', 'memory', 'vocabulary'], ...] = (
    *('short', 'long', 'memory'),
  )
  # Rounds, each timing every contender once.
  repeats: flags.Positive = 9
  # Steps per timing of the short table.
  steps: flags.Positive = 5
  # Row lengths of the memory table.
  lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 16_384, 32_768)
  # Tokens at a time of the vocabulary's loss, below 1,024.
  chunks: tuple[int, ...] = (64, 256)
  # How the vocabulary's table is used.
  embedding: Literal['none', 'int8'] = 'none'


_FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = _FLAGS.read(argv)
  if settings.table != ('vocabulary',):
    os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {_SCHEDULER}'
  from kaiju_jax.experiments.benchmarks.parts import plain_step
  from kaiju_jax.experiments.benchmarks.parts import vocabulary_loss

  for name in settings.table:
    tables = plain_step.TABLES | {'vocabulary': vocabulary_loss.table}
    report.Report().add(tables[name](settings)).show()


if __name__ == '__main__':
  command.run(main)
