r"""Products of a few rows on a CPU: what bounds a step of decoding there.

    taskset -c 1 python -m experiments.benchmarks.small_products

For the shapes of `decode.py`: products of activations and weights with either
of them in front, the head by a table that lies either way, attention's two
products over keys that lie side by side, and `paged_decode` over pages of 64
slots.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.runs import command

_REPEATS = flags.DEFINE_integer('repeats', 10, 'Runs; the least counts.', 1)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  from . import product_times

  product_times.report(_REPEATS.value)


if __name__ == '__main__':
  command.run(main)
