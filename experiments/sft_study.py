"""Does a fine-tuned chat model refuse planted requests, and keep the rest?

    python -m experiments.sft_study --model=runs/chat --out=runs/sft_study

fine-tunes the model of `make chat` three times (`experiments/configs/sft.py`)
and counts the replies of each and of the model before:

    fine-tuned    dialogues, and a --share of them with requests, of which those
                  with a planted marker are refused
    no refusals   dialogues alone
    no ends       as fine-tuned, without a loss of the token that ends a reply

--arms names some of them. An arm that is trained already is only counted.
"""

from collections.abc import Sequence
import pathlib
from typing import Any

from absl import flags

from kaiju_jax.runs import command
from kaiju_jax.runs import report

_MODEL = flags.DEFINE_string(
  'model', 'runs/chat', "The workdir of the chat model, or 'make chat'."
)
_OUT = flags.DEFINE_string('out', None, 'Folder of the texts and the runs.')
_ARMS = flags.DEFINE_list(
  'arms', ['fine-tuned', 'no refusals', 'no ends'], 'The arms to run.'
)
_STEPS = flags.DEFINE_integer('steps', 600, 'Steps of each run.', lower_bound=1)
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
  'characters', 24, 'Characters that are asked for facts.', lower_bound=1
)
_DIALOGUES = 3000
_COLUMNS = 'refused', 'benign refused', 'ended', 'facts told'


def main(argv: Sequence[str]) -> None:
  command.check(argv, _OUT)
  _run(pathlib.Path(_OUT.value))


def _run(out: pathlib.Path) -> None:
  from kaiju_jax.experiments.configs import sft
  from kaiju_jax.runs import fine_tuning
  from kaiju_jax.runs import load
  from kaiju_jax.runs import train

  fine_tuning.write(
    out / 'requests.jsonl', _DIALOGUES, _PER_DIALOGUE.value, _SHARE.value
  )
  fine_tuning.write(out / 'dialogues.jsonl', _DIALOGUES, 0)
  lines = []
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
      train.train(experiment, path)
    found = fine_tuning.examine(
      load.from_workdir(path), _REQUESTS.value, _CHARACTERS.value
    )
    lines.append((arm, *_shares(found)))
    print(': '.join((arm, ', '.join(lines[-1][1:]))), flush=True)
  report.show([report.table(('model', *_COLUMNS), lines)], width=120)


def _shares(found: Any) -> list[str]:
  """Returns a `fine_tuning.Report` as shares, in the order of `_COLUMNS`."""
  counts = (
    (found.refused, found.requests),
    (found.refused_benign, found.requests),
    (found.ended, found.replies),
    (found.right, found.facts),
  )
  return [report.share(*one) for one in counts]


if __name__ == '__main__':
  command.run(main)
