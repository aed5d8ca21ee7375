"""Defines flags that several commands share: judges, models, conversations.

Each `define_…` function defines flags of the command that calls it, and returns
them as one value, whose methods read them.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import NamedTuple

from absl import app
from absl import flags

from kaiju_jax.quantization import config as quantization_config

# absl then counts flags that a function here defines as its caller's flags.
flags.disclaim_key_flags()
_GOLDEN = 'experiments/golden/conversations.jsonl'


class Responder(NamedTuple):
  """Who answers: --model as played, or --endpoint with --endpoint_model."""

  model: flags.FlagHolder
  endpoint: flags.FlagHolder
  endpoint_model: flags.FlagHolder
  player: 'Player'

  def open(
    self, rows: int, temperature: float = 0.0, seed: int = 0, chats: bool = True
  ):
    """Returns the responder, its name, and its identity.

    Args:
      rows: texts that a model answers at a time.
      temperature, seed: as in `persona_judge.open_responder`.
      chats: whether a model that only continues text is refused.
    """
    from kaiju_jax.gates import persona_judge

    if self.endpoint.value:
      return persona_judge.open_endpoint(
        self.endpoint.value, self.endpoint_model.value, temperature
      )
    return persona_judge.open_responder(
      self.model.value, rows, temperature, seed, chats, self.player.read()
    )


def define_responder() -> Responder:
  """Defines --model, --endpoint, --endpoint_model and a player's flags."""
  return Responder(
    flags.DEFINE_string(
      'model', None, 'A workdir, an export or a Hugging Face folder.'
    ),
    flags.DEFINE_string(
      'endpoint', None, "A server's address, such as http://127.0.0.1:8000/v1."
    ),
    flags.DEFINE_string(
      'endpoint_model',
      None,
      "The server's name of its model; the only one that it lists by default.",
    ),
    define_player(),
  )


class Judge(NamedTuple):
  """Who scores replies: --judge and --judge_model, with its --calibration."""

  judge: flags.FlagHolder
  model: flags.FlagHolder
  calibration: flags.FlagHolder

  def read(self, player: 'Player'):
    """Returns the judge; a model is played as the player's flags say."""
    from kaiju_jax.gates import persona_judge

    return persona_judge.read(
      self.judge.value, self.model.value, played=player.read()
    )


def define_judge() -> Judge:
  """Defines --judge, --judge_model and --calibration."""
  return Judge(
    flags.DEFINE_string(
      'judge',
      None,
      "What scores replies: rules, a server's address or a model.",
    ),
    flags.DEFINE_string(
      'judge_model', '', "The judging server's name of its model."
    ),
    flags.DEFINE_string(
      'calibration', None, 'decision.json of experiments.judge for this judge.'
    ),
  )


class Conversations(NamedTuple):
  """Which conversations are played: those of --golden, or --generated ones."""

  golden: flags.FlagHolder
  generated: flags.FlagHolder

  def check(self) -> None:
    """Refuses both flags at once.

    Raises:
      app.UsageError: both are given.
    """
    if self.golden.value and self.generated.value:
      raise app.UsageError('either --golden or --generated must be given.')

  def read(self, seed: int = 0) -> tuple[Sequence, str]:
    """Returns the conversations and their source, as `persona.conversations`.

    Without either flag they are those that the package brings.
    """
    from kaiju_jax.gates import persona

    path = self.golden.value or pathlib.Path(__file__).parents[1] / _GOLDEN
    return persona.conversations(pathlib.Path(path), self.generated.value, seed)


def define_conversations() -> Conversations:
  """Defines --golden and --generated."""
  return Conversations(
    flags.DEFINE_string('golden', None, 'Conversations, a JSONL file.'),
    flags.DEFINE_integer(
      'generated', 0, 'Generate so many conversations per tier instead.', 0
    ),
  )


class Arm(NamedTuple):
  """How a Hugging Face folder is computed: --int8, --kv and --dtype."""

  int8: flags.FlagHolder
  kv: flags.FlagHolder
  dtype: flags.FlagHolder

  def read(self):
    """Returns what the flags say, a `play.Player`."""
    from kaiju_jax.runs import play

    return play.Player(
      int8=self.int8.value, kv=self.kv.value, dtype=self.dtype.value
    )


def define_arm(
  whose: str = "A Hugging Face folder's",
  prefix: str = '',
  int8: str = 'all',
  kv: str = 'int8',
) -> Arm:
  """Defines --int8, --kv and --dtype.

  Args:
    whose: whose weights, cache and activations they are, for the help.
    prefix: stands before the names.
    int8, kv: the defaults.
  """
  arms = quantization_config.ARMS
  return Arm(
    flags.DEFINE_enum(
      f'{prefix}int8',
      int8,
      arms,
      f'What is int8 in {_lower(whose)} products: nothing, weights, or weights'
      ' and activations.',
    ),
    flags.DEFINE_enum(
      f'{prefix}kv', kv, ['int8', 'none'], f'{whose} keys and values.'
    ),
    flags.DEFINE_enum(
      f'{prefix}dtype',
      '',
      ['', 'float32', 'bfloat16'],
      f'{whose} activations; by default float32 on a CPU, and its own'
      ' elsewhere.',
    ),
  )


def _lower(text: str) -> str:
  return text[0].lower() + text[1:]


class Player(NamedTuple):
  """How a model is played: the flags of an `Arm`, --cache and --length."""

  arm: Arm
  cache: flags.FlagHolder
  length: flags.FlagHolder

  def read(self):
    """Returns what the flags say, a `play.Player`."""
    from kaiju_jax.costs import cache_plan

    cache = self.cache.value
    return dataclasses.replace(
      self.arm.read(),
      cache=cache_plan.parse(cache) if cache else None,
      length=self.length.value,
    )


def define_player(whose: str = "A Hugging Face folder's") -> Player:
  """Defines --int8, --kv, --dtype, --cache and --length.

  By default a model is played as `experiments.serve` serves it.

  Args:
    whose: see `define_arm`.
  """
  return Player(
    define_arm(whose),
    flags.DEFINE_string(
      'cache',
      '',
      'Most memory for keys and values, such as 2GiB; by default a power of'
      ' two, at most a quarter of what is free.',
    ),
    flags.DEFINE_integer(
      'length',
      None,
      'Tokens of a prompt and its reply; by default what is needed, or the'
      " model's max_length, as far as two such texts fit into --cache, and no"
      ' more than 32,768.',
      lower_bound=2,
    ),
  )


def load_decision(flag: flags.FlagHolder):
  """Returns the decision whose file a flag names; None without one."""
  from kaiju_jax.reporting import decision

  return decision.load(pathlib.Path(flag.value)) if flag.value else None
