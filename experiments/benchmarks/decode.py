r"""Compare prefill and decoding with `transformers` and llama.cpp, in one run.

    python -m experiments.benchmarks.decode --batch=8 --length=2048 --turns=2
    python -m experiments.benchmarks.decode --shape=qwen3-0.6b --arms=all
    python -m experiments.benchmarks.decode --parts=quality
    python -m experiments.benchmarks.decode --parts=speed --model=FILE --http

A folder of a model's shape with random weights, which all sides read: ours by
the arms of `serve --int8`, `transformers` in float32 and bfloat16 with both of
its caches, and llama.cpp in Q8_0. The shape `arcee-97m` has squared ReLU
without a gate, one head of keys and values, and global layers alone. With
--model the weights are a GGUF file's, which llama.cpp also reads as it is, and
with --http its server and ours are asked by one client, too.

    speed     tokens per second of prefill and of a greedy step. Sides take
              turns, and each has its least time, because what disturbs only
              adds
    quality   our arms beside `transformers` in float32: logits, KL, memory
    local     a step of a model of `arcee-97m` with windows alone, int8, behind
              --length tokens and behind --far

Needs the extra `interchange`; llama.cpp needs xllamacpp, and is left out where
it is not installed.
"""

from collections.abc import Sequence
import contextlib
import os
import pathlib

from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.experiments.benchmarks.parts import settings as settings_lib
from kaiju_jax.reporting import report
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

_FLAGS = flags.flags_of(settings_lib.DecodeSettings)


def main(argv: Sequence[str]) -> None:
  settings = _FLAGS.read(argv)
  settings.check()
  # Threads of torch that wait by spinning slow down all others.
  os.environ.setdefault('OMP_WAIT_POLICY', 'passive')
  from kaiju_jax.experiments.benchmarks.parts import decode_sides

  page = report.Report()
  name = settings.model or settings.shape
  page.say(f'{name}, {settings.batch} × {settings.length} tokens')
  with (
    contextlib.nullcontext(pathlib.Path(settings.model))
    if settings.model
    else open_shapes.provide(settings.shape)
  ) as folder:
    for part in settings.parts:
      decode_sides.PARTS[part](page, folder, settings)
  page.show()


if __name__ == '__main__':
  command.run(main)
