"""After how many tokens have the runs of a folder learnt their task?

    python -m experiments.ablate --config=induction \\
      --out=runs/induction --seeds=0,1,2
    python -m experiments.learning --runs=runs/induction --reading=eval_answered

Reads ROOT/ARM/seedS of any ablation or needle comparison whose runs evaluate
along the way (`loop.evaluate_every`). Prints a row per arm with the tokens
after which the reading is at --least and stays there, and writes
ROOT/learning.<reading>.png, the reading over tokens. Runs under way are read
as far as they are.
"""

from collections.abc import Sequence
import pathlib

from absl import flags

from kaiju_jax.runs import command

_RUNS = flags.DEFINE_string('runs', None, 'Folder of ARM/seedS workdirs.')
_READING = flags.DEFINE_string(
  'reading', 'eval_accuracy', 'A reading of metrics.jsonl.'
)
_LEAST = flags.DEFINE_float('least', 0.95, 'The value that counts as learnt.')
_ARMS = flags.DEFINE_list('arms', None, 'Which arms to show; all by default.')


def main(argv: Sequence[str]) -> None:
  command.check(argv, _RUNS)
  _show()


def _show() -> None:
  from kaiju_jax.evaluation import learning
  from kaiju_jax.runs import report

  report.require_figures()
  name = _READING.value
  runs = learning.runs(_RUNS.value)
  arms = command.choose(_ARMS, (run.arm for run in runs))
  runs = [run for run in runs if run.arm in arms]
  runs.sort(key=lambda run: arms.index(run.arm))
  if not any(run.readings(name) for run in runs):
    readings = sorted(
      {key for run in runs for r in run.records for key in r if 'eval_' in key}
    )
    raise ValueError(
      f'--reading={name!r}: no run has it; there are'
      f' {", ".join(readings) or "none: the runs did not evaluate"}.'
    )
  page = pathlib.Path(_RUNS.value) / f'learning.{name}.png'
  drawn = report.figure(9, 5)
  learning.draw(drawn, runs, name, _LEAST.value, report.style)
  report.save(drawn, page)
  report.show([learning.table(runs, name, _LEAST.value)], [page])


if __name__ == '__main__':
  command.run(main)
