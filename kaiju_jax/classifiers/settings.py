"""The flags of the commands that train and examine classifiers."""

import dataclasses
from typing import Annotated
from typing import Any
from typing import Literal

from absl import app

from kaiju_jax.runs import flags
from kaiju_jax.runs import play


@dataclasses.dataclass(frozen=True, kw_only=True)
class Division:
  """How labelled texts are divided, and how a part is fitted."""

  # The part of the texts that chooses the thresholds.
  choose: float = 0.2
  # The part of the texts that counts what they do.
  certify: float = 0.4
  # Inverse of the regularization's strength, above 0, as in scikit-learn.
  c: Annotated[float, flags.Bounds(above=0.0)] = 1.0
  # Seed of the split, and of disguises or drawn tokens.
  seed: flags.NonNegative = 0


DIVISION = Division()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
  """Which texts there are, and how they are divided."""

  # Labelled texts, a JSONL file.
  data: str | None = None
  # Make texts with planted marker words.
  planted: bool = False
  division: Division = DIVISION

  def check(self) -> None:
    """Refuses other than one source of texts.

    Raises:
      app.UsageError: not exactly one of --data and --planted.
    """
    if bool(self.data) == self.planted:
      raise app.UsageError('either --data or --planted must be given.')

  def read(self) -> Any:
    """Returns the labelled rows."""
    from kaiju_jax.classifiers import planted
    from kaiju_jax.classifiers import rows

    if self.planted:
      return planted.draw_certifiable(self.division.seed)
    return rows.read(self.data)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spans:
  """How a run trains a token-level head on labelled spans."""

  # Texts with labelled spans, a JSONL file; or 'planted'.
  spans: str | None = None
  # With --spans: factor of the head's loss beside the language model's; 0
  # trains the head alone.
  joint: Annotated[float, flags.Bounds(0.0)] = 0.0
  # With --spans: optimizer steps.
  steps: flags.Positive = 1680
  # With --spans: peak learning rate.
  rate: float = 1e-3
  # With --spans: how much rare labels weigh (kaiju_jax/data/spans.py).
  label_weights: Literal['balanced', 'root', 'equal'] = 'root'
  # With --spans=planted: number of chats.
  chats: flags.Positive = 1920
  # With --spans=planted: the share of chats without planted texts, which
  # practise what the model knew.
  plain: flags.Share = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
  """Which classifier is examined, and with which texts."""

  # Folder of a gate and its thresholds.
  safety: str | None = None
  # Texts that must be refused, a JSONL file.
  adversarial: str | None = None
  # Texts that must not be refused, a JSONL file.
  benign: str | None = None
  # Make texts with planted marker words.
  planted: bool = False
  # A new folder; with --add, a new file.
  out: str
  # The classifier to hold.
  judge: Literal['gate', 'head', 'both'] = 'gate'
  # The model whose hidden states the head reads.
  model: str | None = None
  arm: play.Spread
  # The head's file, or the workdir of its run.
  head: str | None = None
  # Count the served thresholds instead of new ones.
  served: bool = False
  # Folder of an older gate and its thresholds.
  against: str | None = None
  # A server's folder of blocked texts.
  blocked: str | None = None
  # Print so many of the blocked texts that would pass.
  show: flags.NonNegative = 0
  # Find thresholds that bring benign refusals back.
  raise_: bool = False
  # Wrongly refused texts to add to --benign, a JSONL file.
  add: str | None = None
  # Of the claims about both tiers; at least 0.95.
  confidence: flags.Confidence = 0.95
  # Seed of the halves.
  seed: flags.NonNegative = 0

  def check(self) -> None:
    """Refuses flags that make no sense together.

    Raises:
      app.UsageError: names the flags.
    """
    flags.need(safety=self.safety)
    if self.planted == bool(self.adversarial and self.benign):
      raise app.UsageError(
        'either --planted, or both --adversarial and --benign, must be given.'
      )
    if self.judge != 'gate':
      flags.need(model=self.model, head=self.head)
    if self.show and not self.blocked:
      raise app.UsageError('--show needs --blocked.')
