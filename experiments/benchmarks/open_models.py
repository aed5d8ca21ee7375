r"""Open models beside `transformers` and llama.cpp, in one run.

    python -m experiments.benchmarks.open_models --shape=smollm2-135m
    python -m experiments.benchmarks.open_models --shape=qwen3-0.6b --batch=8
    python -m experiments.benchmarks.open_models --parts=quality

A folder of a real model's shape with random bfloat16 weights, which all sides
read: ours by the arms of `serve --int8`, `transformers` in float32 and bfloat16
with both of its caches, and llama.cpp in Q8_0. `quality` compares our arms with
`transformers` in float32: logits, KL, and memory. `speed` gives tokens per
second of prefill and of a greedy step, which the parts measure in turns; each
has its least time over all turns, because what disturbs only adds. `draw` says
which part of our step is spent on drawing a token with top-k and top-p.

Needs the extra `interchange`; llama.cpp needs llama-cpp-python and gguf too,
and is left out where they are not installed.
"""

import os

from absl import flags

from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import command

_ALL = 'quality', 'speed', 'draw'

_SHAPE = flags.DEFINE_enum(
  'shape', 'smollm2-135m', list(open_shapes.SHAPES), 'Whose.'
)
_BATCH = flags.DEFINE_integer('batch', 1, 'Rows.', 1)
_LENGTH = flags.DEFINE_integer('length', 128, 'Tokens of a prompt.', 1)
_STEPS = flags.DEFINE_integer('steps', 8, 'Decoding steps in a turn.', 1)
_TURNS = flags.DEFINE_integer('turns', 4, 'How often every side runs.', 1)
_CLOCK = command.define_clock('wall')
_ARMS = flags.DEFINE_list('arms', ['none', 'weights', 'all'], 'Of ours.')
_PARTS = flags.DEFINE_list('parts', list(_ALL), 'What to run.')


def main(argv):
  command.check(argv)
  parts = command.choose(_PARTS, _ALL)
  arms = command.choose(_ARMS, quantization_config.ARMS)
  # Threads that wait by spinning slow down all others.
  os.environ.setdefault('OMP_WAIT_POLICY', 'passive')
  from kaiju_jax.experiments.benchmarks.parts import open_models

  print(f'{_SHAPE.value}, {_BATCH.value} × {_LENGTH.value} tokens', flush=True)
  settings = open_models.Settings(
    open_shapes.SHAPES[_SHAPE.value]['vocab_size'],
    batch=_BATCH.value,
    length=_LENGTH.value,
    steps=_STEPS.value,
    turns=_TURNS.value,
    arms=tuple(arms),
    clock=command.clock(_CLOCK),
  )
  with open_shapes.provide(_SHAPE.value) as folder:
    for part, measure in (
      ('quality', open_models.measure_quality),
      ('speed', open_models.measure_speed),
      ('draw', open_models.measure_draw),
    ):
      if part in parts:
        measure(folder, settings)


if __name__ == '__main__':
  command.run(main)
