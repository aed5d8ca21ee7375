"""Does decoding through the cache find the needle that the forward pass finds?

    python -m experiments.needle --arms=kaiju
    python -m experiments.needle_cached --model=runs/needle/kaiju/seed0 \\
        [--questions=16] [--chunk=64] [--mode=fast,reference]

Asks a trained run the same questions in two ways: with the whole row in one
forward pass; and as decoding does it, with the prompt in chunks into a cache
and then the answer token by token. The table has a row for each, with the
accuracy over the grid and the difference in points.
"""

from collections.abc import Sequence

from absl import app
from absl import flags
import rich.console
import rich.table

from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string('model', None, 'Folder of one seed of one arm.')
_QUESTIONS = flags.DEFINE_integer(
  'questions', 16, 'Questions per cell of the grid.', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of the questions.', lower_bound=0)
_CHUNK = flags.DEFINE_integer(
  'chunk', 64, 'Tokens per call of the prefill.', lower_bound=1
)
_ROWS = flags.DEFINE_integer(
  'rows', 16, 'Sequences that the cache holds.', lower_bound=1
)
_MODE = flags.DEFINE_list('mode', ['fast'], "The decoder's modes.")


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL)
  command.begin()
  try:
    rich.console.Console().print(_table())
  except (OSError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error


def _table() -> rich.table.Table:
  from kaiju_jax.evaluation import answers
  from kaiju_jax.runs import load
  from kaiju_jax.tasks import registry as tasks
  from kaiju_jax.tasks.needle import questions as needle
  from kaiju_jax.training import step

  found = load.from_workdir(_MODEL.value)
  data = found.experiment.data
  task = tasks.questions(data)
  cells = needle.grid(task, data.length, _QUESTIONS.value)
  asked = sum(cell.count for cell in cells)
  table = rich.table.Table(
    title=f'{_MODEL.value}: {asked:,} questions of up to'
    f' {max(cell.length for cell in cells)} tokens'
  )
  for header in 'how', 'right, %', 'points':
    table.add_column(header, justify='right' if header[-1] in '%s' else 'left')
  read = answers.reader(
    answers.predictor(step.model_of(found.experiment)),
    found.params,
    {cell.length for cell in cells},
  )
  own = needle.accuracy(read, task, cells, [_SEED.value])
  table.add_row('one forward pass', f'{100 * own:.2f}', '')
  for mode in _MODE.value:
    right = needle.accuracy(
      _cached(found, cells, mode), task, cells, [_SEED.value]
    )
    table.add_row(
      f'through the cache, {mode}',
      f'{100 * right:.2f}',
      f'{100 * (right - own):+.2f}',
    )
  return table


def _cached(found, cells, mode: str):
  from kaiju_jax.evaluation import cached_answers
  from kaiju_jax.runs import load

  made = load.decoder(
    found,
    rows=_ROWS.value,
    length=max(cell.length for cell in cells),
    mode=mode,
  )
  return cached_answers.reader(made, _CHUNK.value)


if __name__ == '__main__':
  app.run(main)
