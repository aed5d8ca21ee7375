"""Do the attention kernels find the needle that XLA's attention finds?

    python -m experiments.needle --arms=kaiju
    python -m experiments.needle_kernels --model=runs/needle/kaiju/seed0 \\
        [--attention=chunked,pallas_gpu,pallas_tpu] [--questions=16]

Asks a trained run the same questions with its own attention and with each named
implementation. An implementation that this platform cannot run is interpreted:
that is the kernel's own arithmetic, tile by tile, on a CPU. The table has a row
for each, with the accuracy over the grid and the difference in points.
"""

from collections.abc import Sequence
import contextlib
import dataclasses

from absl import app
from absl import flags
import rich.console
import rich.table

from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string('model', None, 'Folder of one seed of one arm.')
_ATTENTION = flags.DEFINE_list(
  'attention',
  ['chunked', 'pallas_gpu', 'pallas_tpu'],
  'Implementations of attention.',
)
_QUESTIONS = flags.DEFINE_integer(
  'questions', 16, 'Questions per cell of the grid.', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of the questions.', lower_bound=0)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL)
  command.begin()
  try:
    rich.console.Console().print(_table())
  except (OSError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error


def _table() -> rich.table.Table:
  from kaiju_jax.runs import load
  from kaiju_jax.tasks import registry as tasks
  from kaiju_jax.tasks.needle import questions as needle

  found = load.from_workdir(_MODEL.value)
  experiment, params = found.experiment, found.params
  task = tasks.questions(experiment.data)
  cells = needle.grid(task, experiment.data.length, _QUESTIONS.value)
  asked = sum(cell.count for cell in cells)
  table = rich.table.Table(
    title=f'{_MODEL.value}: {asked:,} questions of length'
    f' {experiment.data.length}'
  )
  for header in 'attention', 'how', 'right, %', 'points':
    table.add_column(header, justify='right' if header[-1] in '%s' else 'left')
  _, own = _asked(experiment, params, experiment.model.attention, task, cells)
  table.add_row('its own', 'compiled', f'{100 * own:.2f}', '')
  for name in _ATTENTION.value:
    how, right = _asked(experiment, params, name, task, cells)
    table.add_row(
      name, how, f'{100 * right:.2f}', f'{100 * (right - own):+.2f}'
    )
  return table


def _asked(experiment, params, name, task, cells) -> tuple[str, float]:
  """Returns how an implementation ran, and its fraction of right answers."""
  from kaiju_jax.evaluation import answers
  from kaiju_jax.kernels import dispatch
  from kaiju_jax.kernels.visibility_attention import api
  from kaiju_jax.tasks.needle import questions as needle
  from kaiju_jax.training import step

  if name and name not in api.RUNS_ON:
    raise ValueError(
      f'--attention: {name!r} is not one of {", ".join(api.RUNS_ON)}.'
    )
  runs_here = not name or dispatch.platform() in api.RUNS_ON[name]
  how = contextlib.nullcontext() if runs_here else dispatch.interpret()
  model = dataclasses.replace(experiment.model, attention=name)
  chosen = dataclasses.replace(experiment, model=model)
  read = answers.reader(
    answers.predictor(step.model_of(chosen)),
    params,
    {cell.length for cell in cells},
  )
  with how:
    right = needle.accuracy(read, task, cells, [_SEED.value])
  return 'compiled' if runs_here else 'interpreted', right


if __name__ == '__main__':
  app.run(main)
