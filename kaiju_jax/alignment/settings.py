"""The journal's settings, and what rounds read: model, user and prompts."""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.alignment import config
from kaiju_jax.alignment import feedback_prompts as log_lib
from kaiju_jax.alignment import head as head_lib
from kaiju_jax.alignment import prompts as prompts_lib
from kaiju_jax.alignment import users
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.runs import load
from kaiju_jax.storage import files
from kaiju_jax.storage import strict
from kaiju_jax.tasks import conversations as task
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import state

SETTINGS = 'align.json'


def describe(
  settings: config.Settings,
  experiment: experiment_lib.Experiment,
  model: str,
  format: chat.Format,
  text: str,
) -> dict[str, Any]:
  """Returns what a folder's rounds depend on.

  Args:
    settings: the settings.
    experiment: the training of a round.
    model: digest of the first model.
    format: its chat format.
    text: hash of the prompts or of the log, and of a user's head.
  """
  fields = dataclasses.asdict(settings)
  del fields['rounds']  # More rounds go on with those that there are.
  return {
    **fields,
    'model_digest': model,
    'tokenizer': tokenizer_lib.hash_use(format.tokenizer),
    'text': text,
    'training': strict.dump(experiment),
  }


class Parts(NamedTuple):
  """What rounds read before they begin.

  Attributes:
    first: the first model; with adapters their base with new ones.
    experiment: the training of a round.
    format: the chat format.
    user: who chooses, a `users.Planted` or a `head.Head`; None with a log.
    log: the log; None without one.
    prompts: the held-out ones first; with a log these alone.
    held: the count of held-out ones.
    watched: the count of those that are read after each round.
    longest: tokens of the longest prompt to which replies are drawn.
    described: see `describe`.
  """

  first: load.Loaded
  experiment: experiment_lib.Experiment
  format: chat.Format
  user: Any
  log: log_lib.Log | None
  prompts: list[prompts_lib.Prompt]
  held: int
  watched: int
  longest: int
  described: dict[str, Any]


def read(
  settings: config.Settings, experiment: experiment_lib.Experiment
) -> Parts:
  """Reads and checks model, user and prompts; compiles and writes nothing.

  Raises:
    OSError, ValueError, checkpoint.RestoreError: names what is unusable.
  """
  user = users.parse(settings.user, settings.choice_temperature)
  first, model = read_first(settings.model, experiment)
  experiment = check_training(experiment, first)
  format = task.format_of(experiment)
  length, log = experiment.data.length, None
  if isinstance(user, users.Described) and user.kind == 'log':
    if settings.prompts:
      raise ValueError(
        f"--prompts={settings.prompts}: must be '' with a log, which has"
        ' prompts of its own.'
      )
    log = log_lib.read(user.path)
    log.check(format, length - settings.tokens - 1)
    found = [one for one, _, _ in log.held_out][: settings.watched]
    held = watched = len(found)
    longest = max(count_tokens(found, format))
    user, text = None, log.digest
  else:
    found, longest = read_prompts(settings, user, format, length)
    held, watched = settings.held_out, settings.watched
    text = prompts_lib.digest(found)
    if isinstance(user, users.Described):
      heat = settings.choice_temperature
      digest = model if first.is_ours else ''
      user = head_lib.Head(user, first, format, heat, digest)
      text = f'{text} {user.digest}'
  described = describe(settings, experiment, model, format, text)
  parts = first, experiment, format, user, log, found
  return Parts(*parts, held, watched, longest, described)


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
  held = strict.fill(config.Settings, files.read_json(path))
  held.pop('rounds')  # No part of what is described.
  held['training'] = strict.fill(
    experiment_lib.Experiment, held.get('training')
  )
  apart = strict.differences(held, described)
  if apart:
    name, (theirs, ours) = next(iter(apart.items()))
    raise ValueError(
      f'--out={out}: holds rounds of another command: {name} was {theirs!r}, is'
      f' {ours!r} now. Name a new folder, or type the former command.'
    )


def read_first(
  path: str, experiment: experiment_lib.Experiment
) -> tuple[load.Loaded, str]:
  """Returns the first model, and a digest of it.

  With adapters it is their base with new ones, which change no logit, so that
  one compiled function serves it and the rounds' models.

  Args:
    path: a workdir; with adapters also an export or a Hugging Face folder.
    experiment: the training of a round.

  Raises:
    OSError, ValueError, checkpoint.RestoreError: it cannot be read, or is no
      workdir and there are no adapters.
  """
  if experiment.lora.rank:
    base = load.base(path, experiment.model.dtype)
    params = state.attach(experiment, base.params)
    return base._replace(params=params), load.digest(base)
  try:
    found = load.from_workdir(path)
  except (FileNotFoundError, ValueError) as error:
    if not pathlib.Path(path).exists():
      raise
    raise ValueError(
      f'--model={path}: is no workdir, of which all weights can be trained;'
      f' adapters train beside others (--rank=16). {error}'
    ) from error
  return found, load.digest(found)


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
  training_config.check_lora(experiment.lora)
  loss = experiment.objective.preference.loss
  if loss == 'options':
    raise ValueError(
      f"objective.preference.loss={loss!r}: must be 'kept' or 'pairs', which"
      ' hold to the reference.'
    )
  data = dataclasses.replace(
    experiment.data,
    tokenizer=loaded.tokenizer,
    chat_template=loaded.chats,
    length=min(experiment.data.length, loaded.config.max_length),
    path='',
    reference='',
    held_out=0.0,
  )
  return dataclasses.replace(
    experiment, model=loaded.config, data=data, begin_with=''
  )


def read_prompts(
  settings: config.Settings, user: Any, format: chat.Format, room: int
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
      '--prompts=: must name conversations, or dialogues:COUNT, but for a log.'
    )
  found = prompts_lib.read(settings.prompts)
  if len(found) <= settings.held_out:
    raise ValueError(
      f'--held_out={settings.held_out}: must be less than the'
      f' {len(found):,} prompts of --prompts={settings.prompts}.'
    )
  if isinstance(user, users.Planted):
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
