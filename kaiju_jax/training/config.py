"""The configs of the optimizer and the training loop; imports no jax."""

import dataclasses

from kaiju_jax.storage import strict


@dataclasses.dataclass
class ZRegConfig:
  """Settings of Z-Reg on the attention logits and on the output logits."""

  # Coefficient c of the virtual term (c/2)·lse² of each query's attention
  # logits; 0 turns it off.
  attention: float = 1e-3
  logits: float = 1e-4  # The same for the output logits.
  # The quantity that Z-Reg pulls to zero in attention: 'lse', or 'mean_logit'
  # (the other reading of the sources).
  target: str = 'lse'
  # 'constant', or 'learning_rate' to multiply the coefficients by the learning
  # rate's fraction of its peak.
  schedule: str = 'constant'


@dataclasses.dataclass
class OptimizerConfig:
  """Settings of AdamW and its schedules.

  Schedules count tokens, so that a changing batch does not move them.
  """

  learning_rate: float = 1e-3  # Peak.
  # 'cosine', 'wsd' (warm-up, stable, decay) or 'constant', each after a linear
  # warm-up.
  schedule: str = 'cosine'
  # Fraction of the run's tokens in the warm-up. The tokens before a step
  # determine its rate, so the first step's is 0.
  warmup: float = 0.02
  # Fraction of the tokens that 'wsd' decays over, at the end.
  decay: float = 0.2
  final: float = 0.05  # Final learning rate as a fraction of the peak.
  b1: float = 0.9  # Adam's first decay.
  b2: float = 0.98  # Adam's second decay.
  weight_decay: float = 0.01  # Decoupled, on matrices only.
  # Global-norm clip of the gradient, without Bungee scalars; 0 for none.
  clip: float = 1.0
  # Bungee scalars' learning rate as a multiple of the other parameters'. (With
  # scales taken from the weights, 10 cost up to 8 % of the loss; fixed grids
  # may need it.)
  bungee_rate: float = 1.0
  # Skip (and count) a step whose gradient is not finite.
  skip_nonfinite: bool = False
  # Microbatches per step over the run, such as '0:2 0.1:4 0.3:8': 4 per step
  # from the first step at 0.1 of the run's tokens or later
  # (`training/batch_schedule.py`). No stage may exceed data.microbatches; ''
  # for data.microbatches throughout.
  batch: str = ''
  # 'none', or 'sqrt': the rate is multiplied by √(microbatches of the step /
  # data.microbatches).
  batch_rate: str = 'none'
  # 'none', or 'width': a matrix's rate is multiplied by transfer_base / its
  # fan-in, so that one learning rate may serve several widths. Weight decay
  # keeps the whole rate. The rest of μP (initial values, the scales of
  # attention logits and of the head) is not done.
  transfer: str = 'none'
  transfer_base: int = 128  # The fan-in at which the rate is not changed.
  # Attention Z-Reg.
  z_reg: ZRegConfig = dataclasses.field(default_factory=ZRegConfig)


def for_others(learning_rate: float) -> OptimizerConfig:
  """Returns settings for a model of other authors, trained without Z-Reg."""
  none = ZRegConfig(attention=0.0, logits=0.0)
  return OptimizerConfig(learning_rate=learning_rate, z_reg=none)


@dataclasses.dataclass
class LoraConfig:
  """Settings of adapters beside the frozen weights of `begin_with`."""

  # The adapters' rank; 0 for none, so that all weights are trained.
  rank: int = 0
  alpha: float = 16.0  # An adapter's part is multiplied by alpha / rank.
  # The weights that get one: words with * and ?, for names such as 'w_q' or
  # 'w_q_DHK', or paths such as 'layer_0.attention.w_q_DHK' (`model/lora.py`).
  matrices: str = '*'


@dataclasses.dataclass
class LoopConfig:
  """The length of a run, and its times of recording, evaluation and saving."""

  steps: int = 1000  # Optimizer steps of the run, if `tokens` is 0.
  # Row tokens of the run, which determine its steps; 0 for as many as `steps`
  # take.
  tokens: int = 0
  # 'WORKDIR@STEP', to begin with that checkpoint of another run, its count of
  # tokens and its position in the data included (`runs/start.py`); '' to begin
  # anew. The checkpoint must be readable whenever the run starts or resumes.
  branch: str = ''
  log_every: int = 10  # Steps between records in metrics.jsonl.
  # Steps between evaluations; 0 for one at the end only.
  evaluate_every: int = 0
  # Steps between checkpoints; one is always saved at the end and when the run
  # is interrupted.
  checkpoint_every: int = 200
  checkpoints_kept: int = 2  # The number of latest checkpoints to keep.
  # Where records go beside metrics.jsonl: words of `TRACKERS`, between commas
  # (`training/records/trackers.py`); '' for nowhere.
  trackers: str = 'tensorboard'
  # 'FIRST:COUNT', such as '100:3', to write a profiler's trace of these steps
  # into WORKDIR/profile; '' for none.
  profile: str = ''


TRACKERS = 'tensorboard', 'trackio', 'wandb', 'mlflow'
# The fields of the loop that change no number of a run. A resumed run may have
# others.
WATCHING = 'trackers', 'profile'


def trackers_of(config: LoopConfig) -> tuple[str, ...]:
  """Returns the names of a run's trackers, each once.

  Raises:
    ValueError: a name is unknown.
  """
  names = tuple(dict.fromkeys(filter(None, config.trackers.split(','))))
  for name in names:
    if name not in TRACKERS:
      raise ValueError(
        f'loop.trackers={config.trackers!r}: {name!r} is not one of'
        f' {", ".join(TRACKERS)}.'
      )
  return names


def profiled_steps(config: LoopConfig) -> range:
  """Returns the steps that `config.profile` names.

  Raises:
    ValueError: it names none.
  """
  if not config.profile:
    return range(0)
  first, _, count = config.profile.partition(':')
  digits = all(x.isascii() and x.isdigit() and int(x) for x in (first, count))
  if not digits:
    raise ValueError(
      f"loop.profile={config.profile!r}: must be FIRST:COUNT, such as '100:3'"
      ' for steps 100 to 102.'
    )
  return range(int(first), int(first) + int(count))


def check_optimizer(config: OptimizerConfig) -> None:
  """Refuses unknown choices and settings out of range.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  choices = {
    'schedule': ('cosine', 'wsd', 'constant'),
    'batch_rate': ('none', 'sqrt'),
    'transfer': ('none', 'width'),
    'z_reg.target': ('lse', 'mean_logit'),
    'z_reg.schedule': ('constant', 'learning_rate'),
  }
  strict.check_choices(config, choices, 'optimizer')
  if config.learning_rate <= 0:
    raise ValueError(
      f'optimizer.learning_rate={config.learning_rate}: must be positive.'
    )
  for name in ('warmup', 'decay', 'final'):
    value = getattr(config, name)
    if not 0 <= value <= 1:
      raise ValueError(f'optimizer.{name}={value}: must lie in 0…1.')
  for name in ('b1', 'b2'):
    value = getattr(config, name)
    if not 0 <= value < 1:
      raise ValueError(
        f'optimizer.{name}={value}: must be a fraction, 0 ≤ … < 1.'
      )
  if config.schedule == 'cosine' and config.warmup == 1:
    raise ValueError(
      f'optimizer.warmup={config.warmup}: must be less than 1, because'
      " optimizer.schedule='cosine' falls over the rest of the run."
    )
  if config.schedule == 'wsd' and config.warmup + config.decay > 1:
    raise ValueError(
      f'optimizer.warmup={config.warmup} and optimizer.decay={config.decay}'
      ' are fractions of one run: together at most 1.'
    )
  if config.transfer_base < 1:
    raise ValueError(
      f'optimizer.transfer_base={config.transfer_base}: must be a fan-in, at'
      ' least 1.'
    )
  for name in ('weight_decay', 'clip', 'bungee_rate'):
    if getattr(config, name) < 0:
      raise ValueError(
        f'optimizer.{name}={getattr(config, name)}: must not be negative.'
      )
  for name in ('attention', 'logits'):
    if getattr(config.z_reg, name) < 0:
      raise ValueError(
        f'optimizer.z_reg.{name}={getattr(config.z_reg, name)}: must not be'
        ' negative.'
      )


def check_lora(config: LoraConfig) -> None:
  """Refuses settings of adapters that would train nothing.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  if config.rank < 0:
    raise ValueError(f'lora.rank={config.rank}: must be at least 0.')
  if not config.rank and config != LoraConfig():
    raise ValueError(
      f'lora.rank=0: must be at least 1 with lora.alpha={config.alpha} and'
      f' lora.matrices={config.matrices!r}; adapters of rank 0 train nothing.'
    )
  if not config.alpha > 0:
    raise ValueError(f'lora.alpha={config.alpha}: must be positive.')
  if not config.matrices.split():
    raise ValueError(
      f"lora.matrices={config.matrices!r}: must name weights, as 'w_q w_v', or"
      " '*' for all."
    )


def check_loop(config: LoopConfig) -> None:
  """Refuses loop settings out of range.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  for name, least in (
    ('steps', 1),
    ('tokens', 0),
    ('log_every', 1),
    ('evaluate_every', 0),
    ('checkpoint_every', 1),
    ('checkpoints_kept', 1),
  ):
    value = getattr(config, name)
    if value < least:
      raise ValueError(f'loop.{name}={value}: must be at least {least}.')
  trackers_of(config)
  profiled_steps(config)
