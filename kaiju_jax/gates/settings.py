"""The settings that several gates share: who answers, who judges, and what."""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Annotated
from typing import Any

from absl import app

from kaiju_jax.runs import flags
from kaiju_jax.runs import play

GOLDEN = (
  pathlib.Path(__file__)
  .parents[1]
  .joinpath('experiments', 'golden', 'conversations.jsonl')
)
_FLOATS = play.Arm(int8='none', kv='none')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Responder:
  """Who answers: a model as it is played, or a server."""

  # A workdir, an export or a Hugging Face folder.
  model: str | None = None
  # A server's address, such as http://127.0.0.1:8000/v1.
  endpoint: str | None = None
  # The server's name of its model; the only one that it lists by default.
  endpoint_model: str | None = None
  player: play.Player = play.SERVED

  def open(
    self, rows: int, temperature: float = 0.0, seed: int = 0, chats: bool = True
  ) -> tuple[Any, str, Any]:
    """Returns the responder, its name, and its identity.

    Args:
      rows: texts that a model answers at a time.
      temperature, seed: of the sampling, if it chats.
      chats: whether a model that only continues text is refused.
    """
    from kaiju_jax.gates import players

    return players.open_responder(self, rows, temperature, seed, chats)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judge:
  """Who scores replies."""

  # What scores replies: rules, a server's address or a model.
  judge: str | None = None
  # The judging server's name of its model.
  judge_model: str = ''
  # decision.json of experiments.judge for this judge.
  calibration: str | None = None

  def read(self, player: play.Player) -> Any:
    """Returns the judge; a model is played like `player`."""
    from kaiju_jax.gates import players

    return players.open_judge(self.judge, self.judge_model, played=player)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversations:
  """Which conversations are played; by default those of the package."""

  # Conversations, a JSONL file.
  golden: str | None = None
  # Generate so many conversations per tier instead.
  generated: flags.NonNegative = 0

  def __post_init__(self) -> None:
    if self.golden and self.generated:
      raise app.UsageError('either --golden or --generated must be given.')

  def read(self, seed: int = 0) -> tuple[Sequence, str]:
    """Returns the conversations, and the SHA-256 or the seed of their source.

    Args:
      seed: of generated ones.

    Raises:
      OSError, ValueError: see `golden.load`.
    """
    from kaiju_jax.evaluation.persona import golden
    from kaiju_jax.reporting import decision
    from kaiju_jax.tasks.dialogues import golden as generated

    if self.generated:
      source = f'generated, {self.generated} per tier, seed {seed}'
      return generated.conversations(self.generated, seed), source
    path = pathlib.Path(self.golden or GOLDEN)
    return golden.load(path), decision.digest(path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gate:
  """Which models are compared, and by what."""

  # A workdir, an export or a Hugging Face folder.
  candidate: str
  # The model that the candidate would replace.
  baseline: str
  conversations: Conversations
  judge: Judge
  # Two models, or two files, that are compared.
  calibration_diff: tuple[str, ...] | None = None
  # Play the conversations, not only read them.
  persona: bool = True
  # What is recalled: facts, or a kind; '' for nothing.
  needle: str = 'multi_key_8'
  # Tokens of the rows that are asked in English.
  needle_length: Annotated[int, flags.Bounds(10)] = 48
  # Questions of --needle to each model.
  needles: flags.Positive = 400
  # A file of prose.
  text: str | None = None
  player: play.Player
  # How the baseline is computed, in floats by default.
  arm: Annotated[play.Arm, flags.Prefix('baseline_')] = _FLOATS
  # A new folder.
  out: str | None = None
  # Conversations that a model plays side by side.
  rows: flags.Positive = 16

  def __post_init__(self) -> None:
    if self.persona:
      flags.need(judge=self.judge.judge)
    if self.calibration_diff and len(self.calibration_diff) != 2:
      raise app.UsageError(
        f'--calibration_diff={",".join(self.calibration_diff)}: must name two'
        ' models.'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Persona:
  """Whose replies are scored, and how."""

  responder: Responder
  # Score the authors' own replies.
  references: bool = False
  conversations: Conversations
  judge: Judge
  # Let the model play another character than asked for.
  swapped: bool = False
  # Let each turn follow the reference replies.
  forced: bool = False
  # decision.json of an earlier run to compare with.
  watch: str | None = None
  # The largest drop that --watch allows: 0.2 is 5 points of 100.
  most: float = 0.2
  # A new folder.
  out: str | None = None
  # Of the sampling; 0 is greedy.
  temperature: Annotated[float, flags.Bounds(0.0)] = 0.0
  # Seed of all draws.
  seed: flags.NonNegative = 0
  # Conversations that a model plays side by side.
  rows: flags.Positive = 16

  def __post_init__(self) -> None:
    flags.need(judge=self.judge.judge)
    who = self.responder
    if bool(who.model) + bool(who.endpoint) + self.references != 1:
      raise app.UsageError(
        'exactly one of --model, --endpoint and --references must be given.'
      )


def load_decision(path: str | None) -> Any:
  """Returns the decision in a file; None without one."""
  from kaiju_jax.reporting import decision

  return decision.load(pathlib.Path(path)) if path else None
