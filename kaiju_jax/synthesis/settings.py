"""Configures how variations are drawn and which are kept; imports no jax."""

import dataclasses
import math

from kaiju_jax.synthesis import form as form_lib


@dataclasses.dataclass(frozen=True)
class Settings:
  """One synthesis. (Every default is our guess.)"""

  variations: int = 4  # How many questions are drawn per passage.
  temperature: float = 0.8  # Temperature of questions and of first answers.
  top_p: float = 0.95  # The probability mass from which these are drawn.
  question_tokens: int = 96  # The most tokens of a question.
  answer_tokens: int = 48  # The most tokens of an answer.
  grounded: bool = True  # Keeps only answers whose words stand in the passage.
  # Keeps only answers that the generator gives again, greedily.
  consistent: bool = True
  # The least log p(answer | passage, question) − log p(answer | question) in
  # nats; −inf keeps all.
  gain: float = 1.0
  # Questions of a passage with the same answer count as one from this share of
  # words on (Jaccard); 1 drops only equal ones.
  overlap: float = 0.8
  seed: int = 0  # The seed from which each variation's seed is made.
  # The text around passages, questions and answers.
  form: form_lib.Form = dataclasses.field(default_factory=form_lib.Form)

  def __post_init__(self) -> None:
    """Refuses settings that are out of range or contradict each other.

    Raises:
      ValueError: names the field, its value and what would be right.
    """
    for name in ('variations', 'question_tokens', 'answer_tokens'):
      if getattr(self, name) < 1:
        raise ValueError(f'{name}={getattr(self, name)}: must be at least 1.')
    if not 0 <= self.temperature < math.inf:
      raise ValueError(
        f'temperature={self.temperature}: must be finite, at least 0.'
      )
    if self.temperature == 0 and self.variations > 1:
      raise ValueError(
        f'temperature=0 with variations={self.variations}: would draw the same'
        ' question every time; take a temperature above 0.'
      )
    if not 0 < self.top_p <= 1:
      raise ValueError(f'top_p={self.top_p}: must be above 0, at most 1.')
    if not 0 < self.overlap <= 1:
      raise ValueError(f'overlap={self.overlap}: must be above 0, at most 1.')
    if math.isnan(self.gain) or self.gain == math.inf:
      raise ValueError(
        f'gain={self.gain}: must be a number of nats, or -inf to keep all.'
      )
