"""The journal's settings, and checks of what rounds read."""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.runs import load
from kaiju_jax.runs.align import config
from kaiju_jax.runs.align import prompts as prompts_lib
from kaiju_jax.runs.align import users
from kaiju_jax.storage import files
from kaiju_jax.storage import strict
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

SETTINGS = 'align.json'


def describe(
  settings: config.Settings,
  experiment: experiment_lib.Experiment,
  loaded: load.Loaded,
  format: chat.Format,
  text: str,
) -> dict[str, Any]:
  """Returns what a folder's rounds depend on.

  Args:
    settings: the settings.
    experiment: the training of a round.
    loaded: the first model.
    format: its chat format.
    text: hash of the prompts or of the log.
  """
  return {
    **dataclasses.asdict(settings),
    'model_digest': load.digest(loaded),
    'tokenizer': tokenizer_lib.hash_use(format.tokenizer),
    'text': text,
    'training': strict.dump(experiment),
  }


def check(out: pathlib.Path, described: dict[str, Any]) -> None:
  """Refuses a folder of other rounds, or of something else.

  Raises:
    ValueError: names what differs.
  """
  path = out / SETTINGS
  if not path.exists():
    if out.exists() and any(one.name != 'lock' for one in out.iterdir()):
      raise ValueError(
        f'--out={out}: holds something else than rounds; must be a new folder,'
        ' or one of the same command.'
      )
    return
  apart = strict.differences(files.read_json(path), described)
  if apart:
    name, (theirs, ours) = next(iter(apart.items()))
    raise ValueError(
      f'--out={out}: holds rounds of another command: {name} was {theirs!r}, is'
      f' {ours!r} now. Name a new folder, or type the former command.'
    )


def check_training(
  experiment: experiment_lib.Experiment, loaded: load.Loaded
) -> experiment_lib.Experiment:
  """Returns the training of a round, without its begin and its files.

  Raises:
    ValueError: a setting that rounds cannot have.
  """
  objective_config.check(experiment.objective)
  training_config.check_optimizer(experiment.optimizer)
  training_config.check_loop(experiment.loop)
  if experiment.lora.rank:
    raise ValueError(
      f'lora.rank={experiment.lora.rank}: must be 0: a round begins with the'
      ' parameters of the one before, and adapters are no base of others.'
    )
  loss = experiment.objective.preference.loss
  if loss == 'options':
    raise ValueError(
      f"objective.preference.loss={loss!r}: must be 'kept' or 'pairs', which"
      ' hold to the reference.'
    )
  data = dataclasses.replace(
    experiment.data,
    tokenizer=loaded.tokenizer,
    path='',
    reference='',
    held_out=0.0,
  )
  return dataclasses.replace(experiment, data=data, begin_with='')


def read_prompts(
  settings: config.Settings, user: users.Planted, format: chat.Format, room: int
) -> tuple[list[prompts_lib.Prompt], int]:
  """Returns the prompts, the held-out ones first, and the longest's tokens.

  Args:
    settings: the settings.
    user: the user who chooses.
    format: the model's chat format.
    room: tokens of a row.

  Raises:
    OSError, ValueError: they cannot be read, are too few, lack what the user
      looks for, or do not fit in a row with all replies.
  """
  if not settings.prompts:
    raise ValueError(
      '--prompts=: must name conversations, or dialogues:COUNT, for planted'
      ' users.'
    )
  found = prompts_lib.read(settings.prompts)
  if len(found) <= settings.held_out:
    raise ValueError(
      f'--held_out={settings.held_out}: must be less than the'
      f' {len(found):,} prompts of --prompts={settings.prompts}.'
    )
  users.check(user, found)
  # A watched prompt's tree holds one reply more than a round's.
  replies = (settings.swipes + 1) * (settings.tokens + 1)
  counts = count_tokens(found, format)
  for one, count in zip(found, counts, strict=True):
    if count + replies > room:
      raise ValueError(
        f'--prompts: {one.name} has {count:,} tokens, and {settings.swipes + 1}'
        f' replies of {settings.tokens} have {replies:,}: a row has {room:,}.'
      )
  return found, max(counts)


def count_tokens(
  found: Sequence[prompts_lib.Prompt], format: chat.Format
) -> list[int]:
  """Returns the tokens of each prompt."""
  return [len(format.prompt(one.messages)) for one in found]
