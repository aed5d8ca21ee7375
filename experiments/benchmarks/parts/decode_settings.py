"""The settings of `benchmarks.decode`; imports no jax."""

import dataclasses
from typing import Literal

from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.runs import flags

_DTYPES = 'float32', 'bfloat16'


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is compared."""

  # What to measure.
  parts: tuple[Literal['speed', 'quality', 'local'], ...] = ('speed', 'quality')
  # The shape of the model.
  shape: Literal[*open_shapes.NAMES] = 'arcee-97m'
  # A GGUF file in place of a shape with random weights; for `speed` alone.
  model: str | None = None
  # Compare servers, too: by the wall clock, with the first arm.
  http: bool = False
  # What `transformers` computes in; none for an empty list.
  peers: tuple[str, ...] = _DTYPES
  # Our arms.
  arms: tuple[Literal['none', 'weights', 'all'], ...] = (
    *('none', 'weights', 'all'),
  )
  # Rows.
  batch: flags.Positive = 1
  # Tokens of a prompt.
  length: flags.Positive = 128
  # The longer context of the part `local`.
  far: flags.Positive = 32_768
  # Decoding steps in a turn.
  steps: flags.Positive = 8
  # How often every side runs.
  turns: flags.Positive = 4
  # Seconds of what; of the processor where others use the machine too.
  clock: Literal['wall', 'processor'] = 'wall'

  def check(self) -> None:
    """Refuses what cannot be measured: ValueError, which names the flag."""
    if self.peers:
      flags.choose('peers', self.peers, _DTYPES)
    if self.model and self.parts != ('speed',):
      raise ValueError(f'--parts={",".join(self.parts)}: --model has speed.')
    if self.http and not (self.model and self.clock == 'wall'):
      raise ValueError('--http: needs --model, and the wall clock.')
