"""Measure what 6 bits cost a gradient, with several codecs.

    python -m experiments.codecs [--config=tiny] [--steps=60]
        [--workers=8] [--seed=0] [--json=PATH] [--figure=PATH]

Trains the config (tiny by default) for --steps, and then takes the gradients
that so many workers would send, each of a microbatch of its own. Prints how far
each codec's gradients are from them, and writes it as JSON, and error against
magnitude as a PNG. The gradients are taken in float32 (--dtype), the int8
matmuls as in training: in the model's bfloat16 they would come out rounded, and
the bf16 row exact.
"""

from collections.abc import Sequence

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(settings_lib.Codecs)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.experiments.studies import codecs

  codecs.run(settings)


if __name__ == '__main__':
  command.run(main)
