"""Which codec a weight's gradient crosses to its owner in; imports no jax.

On the command line `wire_gradients` and `wire_header` of the config are words.
One table here says what each word means.
"""

import dataclasses

from kaiju_jax.quantization import config as quantization_config


@dataclasses.dataclass(frozen=True)
class Codec:
  """How a gradient is coded for the wire.

  Attributes:
    kind: 'float' (its own dtype), 'squinch' (6 bits per element, packed), or
      'int4', a contrast: rounded as int4 would, but sent as floats.
    elements: for 'squinch', what an element's four bits stand for: 'zero',
      'floor' or 'fitted' (`kernels/squinch/reference.py`).
    header: for 'squinch', the steps of a group's scale: 'ln6' or 'quarter'.
    flat: for 'int4', whether blocks run in memory's order instead of along D.
  """

  kind: str
  elements: str = 'zero'
  header: str = 'ln6'
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
  """Returns the codec that a model's gradients cross in."""
  return dataclasses.replace(
    NAMED[config.wire_gradients], header=config.wire_header
  )
