"""Names of the codecs in which gradients cross to their owners; imports no jax.

The config's `wire_gradients` and `wire_header` are words. The table `NAMED`
gives each word's `Codec`.
"""

import dataclasses

from kaiju_jax.quantization import config as quantization_config


@dataclasses.dataclass(frozen=True)
class Codec:
  """The code in which a gradient crosses."""

  # 'float' (the gradient's dtype), 'squinch' (6 bits per element, packed), or
  # 'int4', a contrast that is rounded to int4 but sent as floats.
  kind: str
  # For 'squinch', the meaning of an element's four bits: 'zero', 'floor' or
  # 'fitted' (`kernels/squinch/reference.py`).
  elements: str = 'zero'
  # For 'squinch', the steps of a group's scale: 'ln6' or 'quarter'.
  header: str = 'ln6'
  # For 'int4', whether blocks run in memory's order instead of along D.
  flat: bool = False


FLOAT = Codec('float')
SQUINCH = Codec('squinch')

NAMED = {
  'squinch': SQUINCH,
  'squinch_floor': Codec('squinch', elements='floor'),
  'squinch_fitted': Codec('squinch', elements='fitted'),
  'float': FLOAT,
  'int4': Codec('int4'),
  'int4_flat': Codec('int4', flat=True),
}


def choose(config: quantization_config.QuantizationConfig) -> Codec:
  """Returns the codec of a model's gradients."""
  return dataclasses.replace(
    NAMED[config.wire_gradients], header=config.wire_header
  )
