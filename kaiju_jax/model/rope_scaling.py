"""The config of scaled rotary angles; imports no jax.

A model that was trained on short rows reads longer ones if its slow pairs turn
more slowly (`rotary.rates` has the formulas):

    linear   every pair turns `factor` times more slowly (Chen et al. 2023)
    llama3   pairs whose wavelength exceeds original_length / low do; those
             below original_length / high keep their rates; between, a mixture
             (Llama 3.1)
    yarn     pairs that turn fewer than `slow` times over `original_length` do;
             those that turn more than `fast` times keep their rates; between, a
             ramp. Cosines and sines are multiplied by `attention_factor` (Peng
             et al. 2023)
"""

import dataclasses
import math

from kaiju_jax.storage import strict


@dataclasses.dataclass
class RopeScalingConfig:
  """The scaling of a model's rotary angles, and their precision."""

  kind: str = 'none'  # 'none', 'linear', 'llama3' or 'yarn'.
  factor: float = 1.0  # How many times more slowly the scaled pairs turn.
  # Positions before the scaling ('llama3' and 'yarn').
  original_length: int = 2048
  # Bound of the scaled wavelengths, original_length / low ('llama3').
  low: float = 1.0
  # Bound of the kept wavelengths, original_length / high ('llama3').
  high: float = 4.0
  # Turns over `original_length` from which a rate is kept ('yarn').
  fast: float = 32.0
  slow: float = 1.0  # Turns below which a rate is scaled in full ('yarn').
  attention_factor: float = 1.0  # Multiplies cosines and sines ('yarn').
  layers: str = 'all'  # 'all', or 'global' for global layers alone.
  # The dtype in which rates and angles are computed: 'float64', or 'float32' as
  # the models of other libraries were trained. Cosines and sines are float32 in
  # both.
  angles: str = 'float64'


CHOICES = {
  'kind': ('none', 'linear', 'llama3', 'yarn'),
  'layers': ('all', 'global'),
  'angles': ('float64', 'float32'),
}


def check(config: RopeScalingConfig) -> None:
  """Refuses a scaling that cannot be computed.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  strict.check_choices(config, CHOICES, 'model.rope_scaling')
  if not 1 <= config.factor < math.inf:
    raise ValueError(
      f'model.rope_scaling.factor={config.factor}: must be at least 1.'
    )
  if config.original_length < 1:
    raise ValueError(
      f'model.rope_scaling.original_length={config.original_length}: must be at'
      ' least 1.'
    )
  for less, more in ('low', 'high'), ('slow', 'fast'):
    bounds = getattr(config, less), getattr(config, more)
    if not 0 < bounds[0] < bounds[1] < math.inf:
      raise ValueError(
        f'model.rope_scaling.{less}={bounds[0]}: must be positive and less than'
        f' model.rope_scaling.{more}={bounds[1]}.'
      )
  if not 0 < config.attention_factor < math.inf:
    raise ValueError(
      f'model.rope_scaling.attention_factor={config.attention_factor}: must be'
      ' positive.'
    )
  if config.attention_factor != 1 and config.kind != 'yarn':
    raise ValueError(
      f'model.rope_scaling.attention_factor={config.attention_factor}: must be'
      f" 1 with kind={config.kind!r}; only 'yarn' has one."
    )
