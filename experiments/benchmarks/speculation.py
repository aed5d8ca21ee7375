r"""Replies with and without drafts from their own text, in one run.

    taskset -c 0 python -m experiments.benchmarks.speculation
        [--shape=qwen3-0.6b] [--turns=3] [--sizes=8,16,32,64]

The model has a real one's shape and random weights, so it copies nothing by
itself. Its replies are recorded texts: each call draws as it always does, and
then takes the recorded token instead. One reply has a part that is copied from
the prompt, in a few spans; one has nothing of it; one is a random walk over few
tokens, in which nearly all drafts are wrong. Each is given out with and without
speculation, in turns, and the figure is the median ratio of both times from the
first token to the last. The engine times its calls by the same clock. Beside
it stands the ratio of the calls' least times, which other load moves less. With
`--sizes` it gives out no reply: it prints the least times of a step and of
drafts of these sizes.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.runs import command

_SHAPE = flags.DEFINE_enum(
  'shape', 'smollm2-135m', list(open_shapes.SHAPES), 'Whose.'
)
_MODEL = flags.DEFINE_string(
  'model', '', 'A Hugging Face folder of a shape; by default one is written.'
)
_PROMPT = flags.DEFINE_integer('prompt', 256, 'Tokens of the prompt.', 64)
_REPLY = flags.DEFINE_integer('reply', 256, 'Tokens of a reply.', 8)
_COPIED = flags.DEFINE_float('copied', 0.4, 'Part that is copied.', 0.0, 1.0)
_SPANS = flags.DEFINE_integer('spans', 2, 'In so many pieces.', 1)
_TURNS = flags.DEFINE_integer('turns', 3, 'How often all run.', 1)
_SIZES = flags.DEFINE_list('sizes', [], 'Times drafts of these tokens alone.')
_CLOCK = command.define_clock('processor')


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  from kaiju_jax.experiments.benchmarks.parts import drafts

  settings = drafts.Settings(
    prompt=_PROMPT.value,
    reply=_REPLY.value,
    copied=_COPIED.value,
    spans=_SPANS.value,
    turns=_TURNS.value,
    sizes=tuple(map(int, _SIZES.value)),
    clock=command.clock(_CLOCK),
  )
  measure = drafts.time_calls if settings.sizes else drafts.measure
  with open_shapes.provide(_SHAPE.value, _MODEL.value) as folder:
    measure(folder, settings)


if __name__ == '__main__':
  command.run(main)
