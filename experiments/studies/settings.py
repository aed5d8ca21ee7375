"""The flags of the commands whose code is a study."""

import dataclasses
from typing import Annotated
from typing import Literal

from absl import app

from kaiju_jax.gates import settings as gate_settings
from kaiju_jax.runs import flags
from kaiju_jax.runs import play
from kaiju_jax.synthesis import form
from kaiju_jax.synthesis import settings as synthesis_settings

_SYNTHESIS = synthesis_settings.Settings()
FINE_TUNED = 'fine-tuned', 'no refusals', 'no ends'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recall:
  """Which arms are trained and asked, or which served model is asked."""

  # Arms to compare; all by default.
  arms: tuple[str, ...] | None = None
  # Seeds of the training.
  seeds: flags.Seeds = (0,)
  # Where everything is written; runs/recall without a model.
  out: str | None = None
  # Questions per kind and length.
  questions: flags.Positive = 256
  # Seed of the questions.
  evaluation_seed: flags.NonNegative = 0
  # Runs at once; by default one per core.
  jobs: flags.Positive | None = None
  # Whether the report of trained arms is made.
  report: bool = True
  responder: gate_settings.Responder
  # Kinds to ask; all by default.
  kinds: tuple[str, ...] | None = None
  # Tokens per row.
  lengths: tuple[int, ...] = (64, 128)
  # Share of right answers that must be shown.
  least: Annotated[float | None, flags.Bounds(0.0, 1.0)] = None

  def __post_init__(self):
    if self.responder.model and self.responder.endpoint:
      raise app.UsageError('either --model or --endpoint must be given.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuning:
  """What the chat model is fine-tuned on, and how it is counted."""

  # Fine-tune --model first, in arms; the folder of their texts and runs.
  fine_tune: str = ''
  # With --fine_tune: the arms to run.
  arms: tuple[Literal[*FINE_TUNED], ...] = FINE_TUNED
  # With --fine_tune: steps of each run.
  steps: flags.Positive = 2000
  # With --fine_tune: the learning rate of each run.
  rate: float = 0.001
  # With --fine_tune: requests in a dialogue that has some.
  per_dialogue: flags.Positive = 10
  # With --fine_tune: share of dialogues with requests.
  share: flags.Share = 0.5
  # With --fine_tune: requests of each kind that are counted.
  requests: flags.Positive = 400


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatFacts:
  """Which chat model is asked, and how."""

  # A workdir, an export or a Hugging Face folder.
  model: str = 'runs/chat'
  # How many characters are asked; by default 24, and 40 with --fine_tune.
  count: flags.Positive | None = None
  player: play.Player
  # Of the sampling; 0 is greedy.
  temperature: Annotated[float, flags.Bounds(0.0)] = 0.0
  # Seed of the questions.
  seed: flags.NonNegative = 0
  # Replies to print.
  show: flags.NonNegative = 0
  # Let the built-in characters answer some messages, too.
  characters: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Synthesize:
  """What is asked of which passages, and what is kept."""

  # A workdir, an export or a Hugging Face folder.
  model: str
  # tokenizer.json of an exported file; bytes by default.
  tokenizer: str | None = None
  player: play.Player
  # File, folder or glob of text; a document is a passage.
  documents: str
  # The .jsonl to write; a new file.
  out: str
  # File, folder or glob of evaluation text; questions that stand in it go.
  evaluation: str = ''
  # Questions per passage.
  variations: int = _SYNTHESIS.variations
  # Of questions and first answers.
  temperature: float = _SYNTHESIS.temperature
  # Of questions and first answers.
  top_p: float = _SYNTHESIS.top_p
  # Least log p(answer | passage, question) − log p(answer | question), nats.
  gain: float = _SYNTHESIS.gain
  # Whether variations are filtered, but for their form.
  filters: bool = True
  # Seed of the noise.
  seed: flags.NonNegative = 0
  # Sequences at once; it changes no text.
  rows: flags.Positive = 16
  # Text before each passage, such as worked examples.
  header: str = ''

  @property
  def asked(self) -> synthesis_settings.Settings:
    """The settings of the synthesis."""
    return synthesis_settings.Settings(
      variations=self.variations,
      temperature=self.temperature,
      top_p=self.top_p,
      grounded=self.filters,
      consistent=self.filters,
      gain=self.gain if self.filters else -float('inf'),
      overlap=_SYNTHESIS.overlap if self.filters else 1.0,
      seed=self.seed,
      form=form.Form(header=self.header),
    )
