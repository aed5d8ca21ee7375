"""What the words of the config mean on the wire."""

import pytest

from kaiju_jax.kernels.squinch import reference
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.wire import codec


@pytest.mark.parametrize(
  'word, meaning',
  [
    ('squinch', ('squinch', 'zero', 'quarter', False)),
    ('squinch_floor', ('squinch', 'floor', 'quarter', False)),
    ('squinch_fitted', ('squinch', 'fitted', 'quarter', False)),
    ('float', ('float', 'zero', 'quarter', False)),
    ('int4', ('int4', 'zero', 'quarter', False)),
    ('int4_flat', ('int4', 'zero', 'quarter', True)),
  ],
)
def test_each_word_names_one_codec(word, meaning):
  config = quantization_config.QuantizationConfig(
    wire_gradients=word, wire_header='quarter'
  )
  assert codec.choose(config) == codec.Codec(*meaning)


def test_every_choice_of_the_config_has_a_codec_that_the_kernel_knows():
  choices = quantization_config.CHOICES
  assert tuple(codec.NAMED) == choices['wire_gradients']
  assert choices['wire_header'] == reference.HEADERS
  for one in codec.NAMED.values():
    reference.check(one.elements, one.header)
