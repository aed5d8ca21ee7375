"""The settings that several gates share: who answers, who judges, and what."""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

from absl import app

from kaiju_jax.runs import flags
from kaiju_jax.runs import play

GOLDEN = (
  pathlib.Path(__file__)
  .parents[1]
  .joinpath('experiments', 'golden', 'conversations.jsonl')
)


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
  ):
    """Returns the responder, its name, and its identity.

    Args:
      rows: texts that a model answers at a time.
      temperature, seed: as in `persona_judge.open_responder`.
      chats: whether a model that only continues text is refused.
    """
    from kaiju_jax.gates import persona_judge

    if self.endpoint:
      return persona_judge.open_endpoint(
        self.endpoint, self.endpoint_model, temperature
      )
    return persona_judge.open_responder(
      self.model, rows, temperature, seed, chats, self.player
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judge:
  """Who scores replies."""

  # What scores replies: rules, a server's address or a model.
  judge: str | None = None
  # The judging server's name of its model.
  judge_model: str = ''
  # decision.json of experiments.judge for this judge.
  calibration: str | None = None

  def read(self, player: play.Player):
    """Returns the judge; a model is played like `player`."""
    from kaiju_jax.gates import persona_judge

    return persona_judge.read(self.judge, self.judge_model, played=player)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversations:
  """Which conversations are played; by default those of the package."""

  # Conversations, a JSONL file.
  golden: str | None = None
  # Generate so many conversations per tier instead.
  generated: flags.NonNegative = 0

  def __post_init__(self):
    if self.golden and self.generated:
      raise app.UsageError('either --golden or --generated must be given.')

  def read(self, seed: int = 0) -> tuple[Sequence, str]:
    """Returns the conversations and their source."""
    from kaiju_jax.gates import persona

    path = pathlib.Path(self.golden or GOLDEN)
    return persona.conversations(path, self.generated, seed)


def load_decision(path: str | None) -> Any:
  """Returns the decision in a file; None without one."""
  from kaiju_jax.reporting import decision

  return decision.load(pathlib.Path(path)) if path else None
