"""Which objective a run has, and its settings; imports no jax."""

import dataclasses


@dataclasses.dataclass
class TokenHeadTraining:
  """The token-level head's training (`objectives/token_head.py`).

  Attributes:
    names: the head's C dimensions, in the order of its logits.
    frozen: whether the model below the head (its trunk) stays as it is. The
      head's loss then trains the head alone; otherwise the language model's
      loss trains with it.
    coefficient: the factor of the head's loss, which is added to the language
      model's where the trunk is not frozen.
  """

  names: tuple[str, ...] = ()
  frozen: bool = False
  coefficient: float = 1.0


@dataclasses.dataclass
class ObjectiveConfig:
  """What a training step minimizes.

  Attributes:
    name: 'language' (each token given its predecessor) or 'token_head'.
    token_head: settings of 'token_head'.
  """

  name: str = 'language'
  token_head: TokenHeadTraining = dataclasses.field(
    default_factory=TokenHeadTraining
  )


_NAMES = ('language', 'token_head')


def check(config: ObjectiveConfig) -> None:
  """Refuses settings that cannot be meant.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  if config.name not in _NAMES:
    raise ValueError(
      f'objective.name={config.name!r}: must be one of'
      f' {", ".join(map(repr, _NAMES))}.'
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
