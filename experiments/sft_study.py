"""Does a fine-tuned chat model refuse planted requests, and keep the rest?

    python -m experiments.sft_study --model=runs/chat --out=runs/sft_study

fine-tunes the model of `make chat` three times (`experiments/configs/sft.py`)
and counts the replies of each and of the model before:

    fine-tuned    dialogues, and a --share of them with requests, of which those
                  with a planted marker are refused
    no refusals   dialogues alone
    no ends       as fine-tuned, without a loss of the token that ends a reply

--arms names some of them. An arm that is trained already is only counted. Facts
are compared question by question with the model before. At most 3 points fewer
are allowed: met if the 95 % interval of the difference is above that, missed if
it is below, and otherwise not settled.
"""

from collections.abc import Sequence
import pathlib
from typing import Any

from absl import flags

from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string(
  'model', 'runs/chat', "The workdir of the chat model, or 'make chat'."
)
_OUT = flags.DEFINE_string('out', None, 'Folder of the texts and the runs.')
_ARMS = flags.DEFINE_list(
  'arms', ['fine-tuned', 'no refusals', 'no ends'], 'The arms to run.'
)
_STEPS = flags.DEFINE_integer(
  'steps', 2000, 'Steps of each run.', lower_bound=1
)
_RATE = flags.DEFINE_float('rate', 1e-3, 'The learning rate of each run.')
_PER_DIALOGUE = flags.DEFINE_integer(
  'per_dialogue', 10, 'Requests in a dialogue that has some.', lower_bound=1
)
_SHARE = flags.DEFINE_float(
  'share', 0.5, 'Share of dialogues with requests.', 0.0, 1.0
)
_REQUESTS = flags.DEFINE_integer(
  'requests', 400, 'Requests of each kind.', lower_bound=1
)
_CHARACTERS = flags.DEFINE_integer(
  'characters', 40, 'Characters that are asked for facts.', lower_bound=1
)
_DIALOGUES = 3000
_COLUMNS = 'refused', 'benign refused', 'ended', 'facts told', 'than before'
# The most facts that fine-tuning may lose.
_LOST = 0.03
_VERDICTS = {True: 'met', False: 'MISSED', None: 'not settled'}


def main(argv: Sequence[str]) -> None:
  command.check(argv, _OUT)
  _run(pathlib.Path(_OUT.value))


def _run(out: pathlib.Path) -> None:
  from kaiju_jax.experiments.configs import sft
  from kaiju_jax.experiments.studies import fine_tuning
  from kaiju_jax.runs import grid
  from kaiju_jax.runs import load

  fine_tuning.write(
    out / 'requests.jsonl', _DIALOGUES, _PER_DIALOGUE.value, _SHARE.value
  )
  fine_tuning.write(out / 'dialogues.jsonl', _DIALOGUES, 0)
  lines, words, before = [], [], None
  for arm in ('before', *_ARMS.value):
    path = _MODEL.value
    if arm != 'before':
      path = str(out / arm.replace(' ', '_'))
      experiment = sft.get_config(_MODEL.value)
      texts = 'dialogues' if arm == 'no refusals' else 'requests'
      experiment.data.path = str(out / f'{texts}.jsonl')
      experiment.data.end_weight = 0.0 if arm == 'no ends' else 1.0
      experiment.optimizer.learning_rate = _RATE.value
      experiment.loop.steps = _STEPS.value
      grid.run([grid.Job(arm, experiment, pathlib.Path(path))], 1)
    found = fine_tuning.examine(
      load.from_workdir(path), _REQUESTS.value, _CHARACTERS.value
    )
    before = before or found
    change = fine_tuning.compare(found, before)
    lines.append((arm, *_shares(found), _tell(change)))
    words.append((arm, *(f'{x} of {n}' for n, x in found.by_word.values())))
    print(': '.join((arm, ', '.join(lines[-1][1:]))), flush=True)
  title = 'Benign requests refused, by the words that look like a marker'
  tables = [
    report.Table(lines, ('model', *_COLUMNS)),
    report.Table(words, ('model', *found.by_word), title),
  ]
  report.Report().add(*tables).show(width=120)


def _shares(found: Any) -> list[str]:
  """Returns a `fine_tuning.Report` as shares, in the order of `_COLUMNS`."""
  counts = (
    (found.refused, found.requests),
    (found.refused_benign, found.requests),
    (found.ended, found.replies),
    (int(found.told_CQ.sum()), found.told_CQ.size),
  )
  return [statistics.Share(*one) for one in counts]


def _tell(change: Any) -> str:
  """Returns a `fine_tuning.Change` in points, with its verdict."""
  low, high = (
    100 * (change.mean + sign * change.half_width) for sign in (-1, 1)
  )
  return (
    f'{100 * change.mean:+.1f} ({low:+.1f} … {high:+.1f};'
    f' {change.gained} gained, {change.lost} lost):'
    f' {_VERDICTS[change.is_within(_LOST)]}'
  )


if __name__ == '__main__':
  command.run(main)
