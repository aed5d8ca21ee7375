"""The config of a run's objective; imports no jax."""

import dataclasses

from kaiju_jax.storage import parts


@dataclasses.dataclass
class TokenHeadTraining:
  """Settings of training a token-level head (`objectives/token_head.py`)."""

  # The head's C dimensions, in the order of its logits.
  names: tuple[str, ...] = ()
  # Whether the model below the head (its trunk) keeps its parameters. If so,
  # the head's loss trains the head alone; otherwise the head and the language
  # model train together.
  frozen: bool = False
  # The factor of the head's loss in its sum with the language model's loss, if
  # the trunk is not frozen.
  coefficient: float = 1.0


@dataclasses.dataclass
class Distillation:
  """Settings of training with a teacher (`objectives/distillation.py`)."""

  entries: int = 50  # T, slots per token for a teacher's vocabulary entries.
  # The data's share of the loss, 0…1: 0 for the teacher's term alone, 1 for the
  # data's alone.
  mix: float = 0.0
  # Divides the student's logits in the teacher's term; must be that of the
  # teacher's store.
  temperature: float = 1.0


@dataclasses.dataclass
class Preference:
  """Settings of learning from choices (`objectives/preference.py`)."""

  # 'kept' (softmax over a turn's replies), 'pairs' (DPO of the kept reply with
  # each other one) or 'options' (no reference model).
  loss: str = 'kept'
  # The factor of rewards: the larger, the closer to the reference.
  beta: float = 0.1
  nll: float = 0.0  # The factor of the kept reply's own loss per token.


@dataclasses.dataclass
class AttentionAlignment:
  """The teacher of `objectives/attention_alignment.py`.

  `experiments.uptrain` writes these settings beside a student. All else of the
  teacher's model is the student's.
  """

  # A workdir, an export or a Hugging Face folder. It must be readable whenever
  # the run starts or resumes.
  teacher: str = ''
  layout: str = ''  # Its layers, as `model.layout`.
  num_kv_heads: int = 1  # Its heads of keys and values.
  window: int = 0  # Positions that its local layers see; 0 for the student's.


@dataclasses.dataclass
class ObjectiveConfig:
  """The objective that a training step minimizes."""

  # 'language' (predicts each token), 'distillation' (predicts a teacher's
  # distribution of each token), 'attention_alignment' (each layer's attention
  # does as a teacher's does), 'preference' (prefers replies that users kept),
  # 'token_head', or one of your own (`runs/own_parts.py`).
  name: str = 'language'
  # Settings of 'token_head'.
  token_head: TokenHeadTraining = dataclasses.field(
    default_factory=TokenHeadTraining
  )
  # Settings of 'distillation'.
  distillation: Distillation = dataclasses.field(default_factory=Distillation)
  # Settings of 'attention_alignment'.
  attention_alignment: AttentionAlignment = dataclasses.field(
    default_factory=AttentionAlignment
  )
  # Settings of 'preference'.
  preference: Preference = dataclasses.field(default_factory=Preference)
  # Tokens whose logits a device holds at a time; the backward pass then makes
  # them again. 0 for all tokens of a microbatch at once (`vocabulary_loss.py`).
  chunk: int = 0


NAMES = (
  *('language', 'distillation', 'attention_alignment'),
  *('preference', 'token_head'),
)
_LOSSES = ('kept', 'pairs', 'options')


def check(config: ObjectiveConfig) -> None:
  """Refuses unknown objectives and settings out of range.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  parts.check('objective.name', config.name, NAMES)
  if config.chunk < 0:
    raise ValueError(
      f'objective.chunk={config.chunk}: must be at least 1, or 0 for all tokens'
      ' of a microbatch at once.'
    )
  head = config.token_head
  if config.name == 'token_head' and not head.names:
    raise ValueError(
      f'objective.token_head.names={head.names!r}: must name at least one'
      ' dimension.'
    )
  if not 0 <= head.coefficient < float('inf'):
    raise ValueError(
      f'objective.token_head.coefficient={head.coefficient}: must be finite,'
      ' at least 0.'
    )
  if config.name == 'attention_alignment':
    _check_alignment(config.attention_alignment)
  _check_distillation(config.distillation)
  _check_preference(config.preference)


def _check_alignment(config: AttentionAlignment) -> None:
  for name, expected in (
    ('teacher', "the teacher's workdir, export or Hugging Face folder"),
    ('layout', "its layers, such as 'G0 G1 G2 G3'"),
  ):
    if not getattr(config, name):
      raise ValueError(
        f"objective.attention_alignment.{name}='': must name {expected};"
        ' experiments.uptrain writes it beside a student.'
      )


def _check_preference(config: Preference) -> None:
  if config.loss not in _LOSSES:
    raise ValueError(
      f'objective.preference.loss={config.loss!r}: must be one of'
      f' {", ".join(map(repr, _LOSSES))}.'
    )
  if not 0 < config.beta < float('inf'):
    raise ValueError(
      f'objective.preference.beta={config.beta}: must be above 0 and finite.'
    )
  if not 0 <= config.nll < float('inf'):
    raise ValueError(
      f'objective.preference.nll={config.nll}: must be finite, at least 0.'
    )


def _check_distillation(config: Distillation) -> None:
  for name, is_right, expected in (
    ('entries', config.entries >= 1, 'at least 1'),
    ('mix', 0 <= config.mix <= 1, 'in 0…1 (0 for the teacher alone)'),
    (
      'temperature',
      0 < config.temperature < float('inf'),
      'above 0 and finite',
    ),
  ):
    if not is_right:
      raise ValueError(
        f'objective.distillation.{name}={getattr(config, name)}: must be'
        f' {expected}.'
      )
