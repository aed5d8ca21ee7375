"""The flags of the commands whose code is a study."""

import dataclasses
from typing import Annotated
from typing import Literal

from absl import app

from kaiju_jax.gates import settings as gate_settings
from kaiju_jax.runs import flags
from kaiju_jax.runs import play
from kaiju_jax.runs import slurm
from kaiju_jax.synthesis import form
from kaiju_jax.synthesis import settings as synthesis_settings
from kaiju_jax.training import experiment as experiment_lib

_SYNTHESIS = synthesis_settings.Settings()
FINE_TUNED = 'fine-tuned', 'no refusals', 'no ends'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recall(slurm.Launch):
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
  # Whether the report of trained arms is made.
  report: bool = True
  responder: gate_settings.Responder
  # Kinds to ask; all by default.
  kinds: tuple[str, ...] | None = None
  # Tokens per row.
  lengths: tuple[int, ...] = (64, 128)
  # Share of right answers that must be shown.
  least: Annotated[float | None, flags.Bounds(0.0, 1.0)] = None

  def __post_init__(self) -> None:
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
  # Replies to print; with --loops conversations.
  show: flags.NonNegative = 0
  # A way to draw, such as temperature=0.7,top_p=0.9, and '' for a server's
  # default; can be repeated. Counts how many replies of ten characters loop.
  loops: flags.Repeated = ()
  # With --loops: conversations of ten replies with each character.
  repeats: flags.Positive = 3


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

  def __post_init__(self) -> None:
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

  def __post_init__(self) -> None:
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needle(slurm.Launch):
  """Which arms are trained, and what they are asked."""

  # Synthetic pairs, or sentences hidden in natural text.
  task: Literal['needle', 'needle_text'] = 'needle'
  # Arms to compare; the config's ARMS by default.
  arms: tuple[str, ...] | None = None
  # Seeds of the runs.
  seeds: flags.Seeds = (0,)
  # Where everything is written; runs/<task> by default.
  out: str | None = None
  # File, folder or glob of text for needle_text; by default the text in this
  # Python installation.
  data: str | None = None
  # Questions in each cell that the verdicts quote; fewer in the others.
  questions: flags.Positive = 64
  # Seed of the questions.
  evaluation_seed: flags.NonNegative = 0
  # Whether needle.json, needle.png and the table are made.
  report: bool = True

  def __post_init__(self) -> None:
    if self.data is not None and self.task != 'needle_text':
      raise ValueError(
        f'--data={self.data!r}: only --task=needle_text reads text.'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
  """What is compared with one forward pass."""

  # Workdir of one run.
  model: str
  # Devices that share the model and its cache.
  tensor: flags.Positive = 1
  # The comparison.
  of: Literal['cache', 'answers', 'kernels'] = 'cache'
  # Texts, or sequences that the cache holds.
  rows: flags.Positive = 8
  # Tokens per call of the prefill.
  chunk: flags.Positive = 64
  # Tokens that are run in chunks; half of a text by default.
  prompt: int | None = None
  # Questions per cell of the grid.
  questions: flags.Positive = 16
  # Seed of the questions.
  seed: flags.NonNegative = 0
  # The decoder's modes.
  mode: tuple[str, ...] = ('fast',)
  # Implementations of attention.
  attention: tuple[str, ...] = ('chunked', 'pallas_gpu', 'pallas_tpu')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Codecs:
  """Which gradients are taken, and where the figures go."""

  # What is trained: NAME:ARM, or PATH:ARM.
  config: Annotated[experiment_lib.Experiment, flags.Config('tiny')]
  # Optimizer steps before gradients are taken.
  steps: flags.Positive = 60
  # Gradients taken, each of its own microbatch.
  workers: Annotated[int, flags.Bounds(2)] = 8
  # Seed of parameters and data.
  seed: int = 0
  # Dtype of the gradients.
  dtype: Literal['float32', 'bfloat16'] = 'float32'
  # Blocks across the other dimensions, not along d_model.
  across: bool = False
  # Where the figures go.
  json: str = 'runs/codecs/codecs.json'
  # Where the plot goes.
  figure: str = 'runs/codecs/codecs.png'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distill(slurm.Launch):
  """How often, and where, students train."""

  # Seeds of the runs.
  seeds: flags.Seeds = (0, 1, 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
  """Which facts, and how many of the variations are wrong."""

  # Folder of all runs.
  out: str = 'runs/facts'
  # Seeds of the runs.
  seeds: flags.Seeds = (0,)
  # Share of the variations that become errors.
  planted: flags.Share = 0.3
  # Seed of the facts.
  world: flags.NonNegative = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ablate(slurm.Launch):
  """Which arms run on which seeds."""

  # A config with ARMS: NAME of experiments/configs/, or a path. Every
  # --config.FIELD=VALUE is an override that all runs get.
  config: str | None = None
  # Folder of all workdirs and of report.md.
  out: str
  # Seeds that each arm runs on.
  seeds: flags.Seeds = (0, 1, 2)
  # FIELD=VALUE,VALUE, such as model.window=16,64: each arm runs with each of
  # the values, the first of which is the baseline. Commas part values, except
  # in double quotes, where "" is a quote. Repeated, each combination runs.
  grid: flags.Repeated = ()
  # Which of ARMS to run; all by default.
  arms: tuple[str, ...] | None = None
  # Arm that all others are compared with, instead of ARMS's.
  baseline: str | None = None
  # What is run: python -m MODULE.
  module: str = 'experiments.train'
  # FSDP width of each run.
  fsdp: int | None = None
  # Tensor width of each run.
  tensor: int | None = None
  # Run nothing: show after how many tokens the runs in --out have learnt their
  # task, by this reading of metrics.jsonl, such as eval_accuracy.
  reading: str = ''
  # With --reading: the value that counts as learnt; 0.95 by default.
  least: float | None = None
  # With --reading: the same of a reading that falls, as eval_loss does.
  most: float | None = None

  def __post_init__(self) -> None:
    if not self.reading:
      flags.need(config=self.config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runs:
  """Which runs are listed."""

  # Only runs in this state.
  state: Literal['finished', 'running', 'stopped', 'diverged'] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare:
  """How runs are compared."""

  # Folder of the report; without it tables are printed alone.
  out: str | None = None
  # Arm that all others are compared with, by its name in the table of runs; by
  # default that of the folder's own report, or of the first run.
  baseline: str | None = None
  # Compare values at this step instead of last ones: of the last record up to
  # it that all runs have. Runs need not be finished.
  step: flags.Positive | None = None
  # The same at so many tokens.
  tokens: flags.Positive | None = None

  def __post_init__(self) -> None:
    if self.step and self.tokens:
      raise ValueError(
        f'--tokens={self.tokens}: has no effect with --step={self.step}.'
      )
