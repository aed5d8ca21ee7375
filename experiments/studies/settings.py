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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Align:
  """Who chooses, in which rounds, and how a round trains."""

  # Workdir of the model to begin with; any model with --rank.
  model: str
  # Conversations that wait for a reply, or dialogues:COUNT.
  prompts: str = ''
  # planted:NAME, head:FILE:DIMENSION or log:FOLDER; or several.
  user: tuple[str, ...] | None = None
  # The folder of the rounds.
  out: str | None = None
  # The most rounds.
  rounds: int = 20
  # Prompts of a round.
  groups: int = 32
  # Replies to each prompt.
  swipes: int = 4
  # The most tokens of a reply.
  tokens: int = 64
  # Of the draws.
  temperature: float = 1.0
  # Of a planted user's choices.
  choice_temperature: float = 0.25
  # Prompts that no round trains on.
  held_out: int = 400
  # Those of them that guards read after each round.
  watched: int = 48
  # The most nats per reply.
  kl_max: float = 12.0
  # How many times longer or shorter replies may become.
  length_max: float = 1.5
  # The largest share of replies that are cut off.
  cut_max: float = 0.05
  # Whether guards stop the rounds.
  guards: bool = True
  # Training steps of a round; fewer in proportion where not all prompts have a
  # choice.
  steps: int = 16
  # The learning rate.
  rate: float = 5e-05
  # The factor of rewards.
  beta: float = 0.1
  # Rows of a step, or that --reference reads at a time; 1, and 2 for that.
  batch: flags.Positive | None = None
  # Rank of adapters, which train alone; 0 trains all weights.
  rank: int = 0
  # As config.lora.alpha.
  alpha: float = 16.0
  # As config.lora.matrices.
  matrices: str = '*'
  # Seeds of the draws of each run.
  seeds: flags.Seeds = (0,)
  # Whether to draw OUT/curves.png; needs matplotlib.
  figure: bool = False
  # Instead of rounds: write the log-probabilities of the replies in --data by
  # --model, which is frozen, into this file.
  reference: str = ''
  # With --reference: conversations with choices, a .jsonl file, folder or glob.
  data: str = ''
  # With --reference: tokens per row; a tree must fit.
  length: Annotated[int, flags.Bounds(2)] = 1024

  def __post_init__(self):
    if self.reference:
      flags.need(data=self.data)
    else:
      flags.need(user=self.user, out=self.out)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exposure:
  """Which text of one person is looked for in a model, and how."""

  # Instead of an export: measure what --model tells others of this text, which
  # has at least four random digits.
  secret: str = ''
  # With --secret: a workdir or an export.
  model: str | None = None
  # With --secret: another one, read beside it.
  before: str | None = None
  # With --secret: conversations that wait for a reply, or dialogues:COUNT.
  prompts: str = 'dialogues:8'
  # With --secret: is said in each prompt, in place of the user's last message.
  ask: str = ''
  # With --secret: texts with other digits, which the secret stands among.
  others: int = 1023
  # With --secret: replies to each prompt.
  draws: flags.Positive = 32
  # With --secret: the most tokens of a reply.
  tokens: flags.Positive = 64
  # With --secret: of the draws.
  temperature: Annotated[float, flags.Bounds(0.0)] = 1.0
  # With --secret: seed of digits and draws.
  seed: flags.NonNegative = 0

  def __post_init__(self):
    if self.secret:
      flags.need(model=self.model)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UptrainStudy:
  """Which students of which toy teacher are compared."""

  # Compare students instead, of a world of configs/uptrain.py, such as gated.
  world: str = ''
  # With --world: seeds of the runs.
  seeds: flags.Seeds = (0, 1, 2)
  # With --world: arms; the config's by default.
  arms: tuple[str, ...] | None = None
  # With --world: steps of a student; the config's by default.
  steps: flags.Positive | None = None
  # With --world: whether students train; otherwise only their starts are read.
  train: bool = True
  # With --world: steps of the teacher; the config's by default.
  teacher_steps: int | None = None
