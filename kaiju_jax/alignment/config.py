"""The settings of rounds of alignment; imports no jax."""

import dataclasses

from kaiju_jax.alignment import guards


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings of a folder of rounds; a rerun may raise `rounds` alone."""

  model: str  # Workdir of the first model, which is the reference too.
  prompts: str  # As for `prompts.read`; '' with recorded feedback.
  user: str  # Who chooses (`users.py`).
  rounds: int = 20  # The most rounds.
  groups: int = 32  # Prompts of a round.
  swipes: int = 4  # Sampled replies per prompt, one of which the user keeps.
  tokens: int = 64  # The most tokens of a reply.
  temperature: float = 1.0  # Of the sampled replies.
  choice_temperature: float = 0.25  # Of a simulated user's choices.
  held_out: int = 400  # Prompts that no round trains on.
  watched: int = 48  # How many of these each round is evaluated on.
  limits: guards.Limits = dataclasses.field(default_factory=guards.Limits)
  is_guarded: bool = True  # Whether a violated limit stops the rounds.
  seed: int = 0  # Of all random choices.


def check(settings: Settings) -> None:
  """Refuses settings out of range.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  limits = settings.limits
  for name, value, is_right, expected in (
    ('rounds', settings.rounds, settings.rounds >= 1, 'at least 1'),
    ('groups', settings.groups, settings.groups >= 1, 'at least 1'),
    ('swipes', settings.swipes, settings.swipes >= 2, 'at least 2'),
    ('tokens', settings.tokens, settings.tokens >= 1, 'at least 1'),
    (
      'temperature',
      settings.temperature,
      0 < settings.temperature < float('inf'),
      'above 0: equal replies leave no choice',
    ),
    (
      'choice_temperature',
      settings.choice_temperature,
      0 <= settings.choice_temperature < float('inf'),
      'finite, at least 0',
    ),
    (
      'watched',
      settings.watched,
      1 <= settings.watched <= settings.held_out,
      f'in 1…{settings.held_out}, the prompts of --held_out',
    ),
    ('kl_max', limits.kl, limits.kl > 0, 'above 0'),
    ('length_max', limits.length, limits.length >= 1, 'at least 1'),
    ('cut_max', limits.cut, 0 <= limits.cut < 1, 'in 0…1, below 1'),
    ('seed', settings.seed, 0 <= settings.seed < 2**32, 'in 0…2³² − 1'),
  ):
    if not is_right:
      raise ValueError(f'--{name}={value}: must be {expected}.')
