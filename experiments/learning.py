"""After how many tokens have the runs of a folder learnt their task?

    python -m experiments.ablate --config=induction \\
      --out=runs/induction --seeds=0,1,2
    python -m experiments.learning --runs=runs/induction --reading=eval_answered

Reads ROOT/ARM/seedS of any ablation or needle comparison whose runs evaluate
along the way (`loop.evaluate_every`). Prints a row per arm with the tokens
after which the reading is at --least and stays there, or for a loss at --most,
which must be below the loss of uniform guesses, and writes
ROOT/learning.<reading>.png, the reading over tokens. Runs under way are read
as far as they are.
"""

from collections.abc import Sequence
import math
import pathlib

from absl import flags

from kaiju_jax.runs import command

_RUNS = flags.DEFINE_string('runs', None, 'Folder of ARM/seedS workdirs.')
_READING = flags.DEFINE_string(
  'reading', 'eval_accuracy', 'A reading of metrics.jsonl.'
)
_LEAST = flags.DEFINE_float(
  'least', None, 'The value that counts as learnt; 0.95 by default.'
)
_MOST = flags.DEFINE_float(
  'most', None, 'The same of a reading that falls, as eval_loss does.'
)
_ARMS = flags.DEFINE_list('arms', None, 'Which arms to show; all by default.')


def main(argv: Sequence[str]) -> None:
  command.check(argv, _RUNS)
  _show()


def _show() -> None:
  from kaiju_jax.experiments.studies import learning
  from kaiju_jax.reporting import figures
  from kaiju_jax.reporting import report

  figures.require_figures()
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
  threshold = _threshold(runs)
  page = pathlib.Path(_RUNS.value) / f'learning.{name}.png'
  drawn = figures.figure(9, 5)
  learning.draw(drawn, runs, name, threshold, figures.style)
  figures.save(drawn, page)
  report.Report().add(learning.table(runs, name, threshold)).show([page])


def _threshold(runs) -> float:
  """Returns the value that counts as learnt.

  Raises:
    ValueError: a reading that falls has no --most, or not one below that of
      uniform guesses.
  """
  from kaiju_jax.experiments.studies import learning

  name = _READING.value
  if not learning.falls(name):
    if _MOST.value is not None:
      raise ValueError(
        f'--most={_MOST.value}: is for readings that fall; {name} rises: give'
        ' --least.'
      )
    return 0.95 if _LEAST.value is None else _LEAST.value
  uniform = min(learning.uniform(run, name) for run in runs)
  if _MOST.value is None or not _MOST.value < uniform:
    known = '' if uniform == math.inf else f', below {uniform:.3f}'
    raise ValueError(
      f'--most={_MOST.value}: {name} falls while a run learns: give the value'
      f' that counts as learnt{known}{known and ", that of uniform guesses"}.'
    )
  if _LEAST.value is not None:
    raise ValueError(
      f'--least={_LEAST.value}: is for readings that rise; {name} falls: give'
      ' --most alone.'
    )
  return _MOST.value


if __name__ == '__main__':
  command.run(main)
