r"""How many of the cache's hits does a restart keep, and how soon?

    python -m experiments.benchmarks.restart --model=runs/chat \
        [--sessions=24] [--turns=4] [--points_size=1GiB]
    python -m experiments.benchmarks.restart --shape=smollm2-135m [--cache=1GiB]

Starts `experiments.serve` as a process of its own, has people talk with its
characters, and ends it (SIGTERM). Then it starts a server on a copy of the
folder for each kind of --points, and each conversation takes one more turn. A
row has the share of prompt tokens that were cached in the last turns before
the end and in those after it, the seconds that reading the points took, that
the start and the end took as a whole, and the files.

With --shape it fills a cache of a model with random weights instead, with
points of texts of 2,048 tokens that never ran, and measures what saving and
reading all of it take, and for how long the engine's thread is held.
"""

from collections.abc import Sequence
import logging

from absl import flags

from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string(
  'model', None, 'A workdir, an export or a Hugging Face folder.'
)
_SHAPE = flags.DEFINE_enum(
  'shape', None, list(open_shapes.SHAPES), 'Of random weights, without --model.'
)
_SESSIONS = flags.DEFINE_integer('sessions', 24, 'Conversations.', 1)
_TURNS = flags.DEFINE_integer('turns', 4, 'Turns of each before the end.', 1)
_TOKENS = flags.DEFINE_integer('tokens', 24, 'Tokens of a reply.', 1)
_SIZE = flags.DEFINE_string('points_size', '1GiB', 'As of serve.')
_CACHE = flags.DEFINE_string('cache', '1GiB', 'As of serve.')


def main(argv: Sequence[str]) -> None:
  from kaiju_jax.costs import cache_plan
  from kaiju_jax.experiments.benchmarks.parts import restart
  from kaiju_jax.reporting import report

  if _SHAPE.value:
    command.check(argv)
    restart.fill(_SHAPE.value, cache_plan.parse(_CACHE.value))
    return
  command.check(argv, _MODEL)
  logging.getLogger('httpx').setLevel(logging.WARNING)  # A line per request.
  more = f'--points_size={_SIZE.value}', f'--cache={_CACHE.value}'
  plan = restart.Plan(
    _MODEL.value, _SESSIONS.value, _TURNS.value, _TOKENS.value, more
  )
  rows = restart.measure(plan)
  columns = (
    *('points', 'hits before', 'after', 'kept', 'points back', 'start', 'end'),
    *('files', 'MiB'),
  )
  report.Report().table(
    [
      (
        row.points,
        f'{100 * row.before:.1f} %',
        f'{100 * row.after:.1f} %',
        f'{100 * row.after / row.before:.1f} %',
        f'{row.restored:.2f} s',
        f'{row.ready:.1f} s',
        f'{row.stopped:.1f} s',
        row.files,
        f'{row.size:.1f}',
      )
      for row in rows
    ],
    columns,
  ).show(as_markdown=True)


if __name__ == '__main__':
  command.run(main)
