"""Loads and checks align.json, and the inputs it names."""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.alignment import config
from kaiju_jax.alignment import feedback_prompts
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


class Inputs(NamedTuple):
  """The inputs of all rounds."""

  first: load.Loaded  # The first model; with LoRA the base and new adapters.
  experiment: experiment_lib.Experiment  # The training of a round.
  format: chat.Format
  # The simulated user; None with feedback.
  user: users.User | None
  feedback: feedback_prompts.Feedback | None  # Recorded choices; None without.
  # The held-out ones first; with feedback these alone.
  prompts: list[prompts_lib.Prompt]
  held_out: int  # The number of held-out prompts.
  watched: int  # How many of these each round is evaluated on.
  longest: int  # Tokens of the longest prompt.
  described: dict[str, Any]  # The content of align.json.


def read(
  settings: config.Settings, experiment: experiment_lib.Experiment
) -> Inputs:
  """Loads and checks model, user and prompts; compiles and writes nothing.

  Raises:
    OSError, ValueError, checkpoint.RestoreError: names what is unusable.
  """
  user = users.parse(settings.user, settings.choice_temperature)
  first, model = _load_first(settings.model, experiment)
  experiment = _fit_training(experiment, first)
  format = task.format_of(experiment)
  length, feedback = experiment.data.length, None
  if isinstance(user, users.Described) and user.kind == 'log':
    if settings.prompts:
      raise ValueError(
        f"--prompts={settings.prompts}: must be '' with a log, which has"
        ' prompts of its own.'
      )
    feedback = feedback_prompts.read(user.path)
    feedback.check(format, length - settings.tokens - 1)
    found = [one for one, _, _ in feedback.held_out][: settings.watched]
    held_out = watched = len(found)
    longest = max(_count_tokens(found, format))
    user, text = None, feedback.digest
  else:
    found, longest = _read_prompts(settings, user, format, length)
    held_out, watched = settings.held_out, settings.watched
    text = prompts_lib.digest(found)
    if isinstance(user, users.Described):
      temperature = settings.choice_temperature
      digest = model if first.is_ours else ''
      user = users.Head(user, first, format, temperature, digest)
      text = f'{text} {user.digest}'
  described = {
    **dataclasses.asdict(settings),
    'model_digest': model,
    'tokenizer': tokenizer_lib.hash_use(format.tokenizer),
    'text': text,
    'training': strict.dump(experiment),
  }
  del described['rounds']  # A rerun may raise it.
  return Inputs(
    first,
    experiment,
    format,
    user,
    feedback,
    found,
    held_out,
    watched,
    longest,
    described,
  )


def check_folder(out: pathlib.Path, described: dict[str, Any]) -> None:
  """Refuses a folder of other rounds, or of something else (ValueError)."""
  path = out / SETTINGS
  if not path.exists():
    if out.exists() and any(one.name != 'lock' for one in out.iterdir()):
      raise ValueError(
        f'--out={out}: holds something else than rounds; must be a new folder,'
        ' or one of the same command.'
      )
    return
  held = strict.fill(config.Settings, files.read_json(path))
  held.pop('rounds')  # The default, which `fill` adds.
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


def _load_first(
  path: str, experiment: experiment_lib.Experiment
) -> tuple[load.Loaded, str]:
  """Returns the first model, and a digest of it."""
  if experiment.lora.rank:
    # New adapters change no logit, and let one compiled function serve the
    # first model and the rounds' models.
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


def _fit_training(
  experiment: experiment_lib.Experiment, loaded: load.Loaded
) -> experiment_lib.Experiment:
  """Returns the training of a round, for the first model's shapes."""
  objective_config.check(experiment.objective)
  training_config.check_optimizer(experiment.optimizer)
  training_config.check_loop(experiment.loop)
  training_config.check_lora(experiment.lora)
  optimizer = experiment.optimizer
  if not loaded.is_ours:
    others = training_config.for_others(optimizer.learning_rate)
    optimizer = dataclasses.replace(optimizer, z_reg=others.z_reg)
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
    experiment,
    model=loaded.config,
    optimizer=optimizer,
    data=data,
    begin_with='',
  )


def _read_prompts(
  settings: config.Settings, user: Any, format: chat.Format, room: int
) -> tuple[list[prompts_lib.Prompt], int]:
  """Returns prompts that fit in a row of `room` tokens, and the longest's."""
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
  # An evaluated prompt's tree holds one reply more than a round's.
  replies = (settings.swipes + 1) * (settings.tokens + 1)
  counts = _count_tokens(found, format)
  for one, count in zip(found, counts, strict=True):
    if count + replies > room:
      raise ValueError(
        f'--prompts: {one.name} has {count:,} tokens, and {settings.swipes + 1}'
        f' replies of {settings.tokens} have {replies:,}: a row has {room:,}.'
      )
  return found, max(counts)


def _count_tokens(
  found: Sequence[prompts_lib.Prompt], format: chat.Format
) -> list[int]:
  """Returns the tokens of each prompt."""
  return [len(format.prompt(one.messages)) for one in found]
