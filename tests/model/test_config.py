"""A model that cannot be built is refused by name, value and remedy."""

import pytest

from kaiju_jax.model import config as config_lib
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.quantization import config as quantization_config


def test_the_default_and_the_plain_model_pass():
  config_lib.check(config_lib.ModelConfig())
  config_lib.check(
    config_lib.ModelConfig(quantization=quantization_config.none())
  )


def test_every_allowed_choice_passes():
  for field, choices in {
    'dtype': ('bfloat16', 'float32'),
    'remat': ('none', 'layer'),
    'qk_norm': ('none', 'head', 'all'),
    'norms': ('before', 'both'),
  }.items():
    for choice in choices:
      config_lib.check(config_lib.ModelConfig(**{field: choice}))
  for field, choices in {
    'matmul': ('int8', 'none'),
    'kv_scale': ('token', 'channel'),
    'qk': ('int8', 'none'),
    'clamp_hidden': ('weight_rms', 'input_std', 'none'),
    'clamp_input': ('input_std', 'none'),
    'bungee': (False, True),
    'input_gradient': ('bf16', 'int8'),
  }.items():
    for choice in choices:
      quantization = quantization_config.QuantizationConfig(**{field: choice})
      config_lib.check(config_lib.ModelConfig(quantization=quantization))


@pytest.mark.parametrize(
  'field, value, remedy',
  [
    *(
      (name, value, 'must be at least 1')
      for name in (
        'vocab_size',
        'd_model',
        'num_heads',
        'num_kv_heads',
        'head_dim',
        'd_ff',
        'max_length',
        'unroll',
      )
      for value in (0, -4)
    ),
    ('num_kv_heads', 3, 'must divide model.num_heads=4'),
    ('head_dim', 33, 'must be even'),
    ('dtype', 'float16', "one of 'bfloat16', 'float32'"),
    ('remat', 'full', "one of 'none', 'layer'"),
    ('rope_local', 1.0, '0 for no rotary'),
    ('rope_global', -2.0, '0 for no rotary'),
    ('norm_epsilon', 0.0, 'between 0 and 1'),
    ('feedforward', 'silu', "one of 'relu2', 'swiglu', 'geglu'"),
    ('norms', 'none', "one of 'before', 'both', 'after'"),
    ('qk_norm', True, "one of 'none', 'head', 'all'"),
    ('unroll', 3, 'must divide the 2 repeats of the layer block'),
    ('quantization.matmul', 'int4', "one of 'int8', 'weights', 'none'"),
    ('quantization.kv', 'fp8', "one of 'int8', 'none'"),
    ('quantization.kv_scale', 'head', "one of 'token', 'channel'"),
    ('quantization.qk', 'bf16', "one of 'int8', 'none'"),
    (
      'quantization.clamp_hidden',
      'constant',
      "one of 'weight_rms', 'input_std', 'none'",
    ),
    ('quantization.clamp_input', 'weight_rms', "one of 'input_std', 'none'"),
    ('quantization.input_gradient', 'int4', "one of 'bf16', 'int8'"),
    ('quantization.clamp_hidden_k', 0.0, 'must be positive'),
    ('quantization.clamp_input_k', -8.0, 'must be positive'),
    (
      'rope_scaling.kind',
      'dynamic',
      "one of 'none', 'linear', 'llama3', 'yarn'",
    ),
    ('rope_scaling.layers', 'local', "one of 'all', 'global'"),
    ('rope_scaling.angles', 'bfloat16', "one of 'float64', 'float32'"),
    ('rope_scaling.factor', 0.5, 'at least 1'),
    ('rope_scaling.factor', float('nan'), 'at least 1'),
    ('rope_scaling.original_length', 0, 'at least 1'),
    ('rope_scaling.low', 4.0, 'less than model.rope_scaling.high=4.0'),
    ('rope_scaling.slow', 0.0, 'less than model.rope_scaling.fast=32.0'),
    ('rope_scaling.attention_factor', 0.0, 'must be positive'),
    ('rope_scaling.attention_factor', 1.1, "only 'yarn' has one"),
  ],
)
def test_check_names_the_field_the_value_and_the_remedy(field, value, remedy):
  config = config_lib.ModelConfig(num_layers=28)
  *room, name = field.split('.')
  setattr(getattr(config, room[0]) if room else config, name, value)
  with pytest.raises(ValueError) as error:
    config_lib.check(config)
  assert str(error.value).startswith(f'model.{field}={value!r}: ')
  assert remedy in str(error.value)


@pytest.mark.parametrize(
  'field, value', [('feedforward', 'geglu'), ('norms', 'after')]
)
def test_a_limit_by_weights_is_that_of_relu2_behind_a_norm(field, value):
  config = config_lib.ModelConfig(**{field: value})
  message = f"clamp_hidden='weight_rms': .* with model.{field}='{value}'"
  with pytest.raises(ValueError, match=message):
    config_lib.check(config)
  config.quantization.clamp_hidden = 'input_std'
  config_lib.check(config)


def test_int8_logits_need_int8_keys():
  config = config_lib.ModelConfig()
  config.quantization.kv = 'none'
  with pytest.raises(ValueError, match=r"qk='int8' needs .*kv='int8', not 'no"):
    config_lib.check(config)


def test_no_rotary_is_allowed():
  config_lib.check(config_lib.ModelConfig(rope_local=0.0, rope_global=0.0))


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(window=0), 'model.window=0: must be at least 1'),
    (dict(num_layers=0), 'model.num_layers=0: must be at least 1'),
    (dict(period=-1), 'model.period=-1: must be at least 0'),
    (dict(local_share=0), 'model.local_share=0: must be at least 1'),
    (dict(global_share=0), 'model.global_share=0: must be at least 1'),
    (
      dict(layout='L0 G0'),
      "model.layout='L0 G0': layer 1: kv_from=0 is of another kind",
    ),
    (dict(layout='L0 Q1'), "model.layout='L0 Q1': 'Q1' is not L"),
    (dict(layout='L0', window=0), 'layer 0: window=0'),
  ],
)
def test_a_stack_that_cannot_run_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    config_lib.check(config_lib.ModelConfig(**changes))


def test_layout_stands_instead_of_depth_period_and_shares():
  config = config_lib.ModelConfig(
    layout='L0 G1 L0', window=5, num_layers=99, period=1, local_share=9
  )
  assert config.layers() == (
    layers_lib.Layer(5, 0),
    layers_lib.Layer(None, 1),
    layers_lib.Layer(5, 0),
  )


def test_layers_follow_the_fields():
  config = config_lib.ModelConfig(
    num_layers=6, window=5, period=3, local_share=1, global_share=1
  )
  assert layers_lib.draw(config.layers()) == 'L0 L1 G2 L3 L4 G5'
  assert {x.window for x in config.layers()} == {5, None}


@pytest.mark.parametrize(
  'changes, quantization, message',
  [
    (dict(d_ff=66_312), {}, 'model.d_ff=66312: must be at most 66311'),
    (
      dict(d_ff=133_145, feedforward='swiglu'),
      dict(clamp_hidden='none'),
      'model.d_ff=133145: must be at most 133144',
    ),
    (dict(d_model=133_145), {}, 'model.d_model=133145: must be at most 133144'),
    (
      dict(num_heads=1041, head_dim=128),
      {},
      'model.num_heads=1041 × head_dim=128: must be at most 133144',
    ),
    (
      dict(vocab_size=133_145),
      dict(embedding='int8', input_gradient='int8'),
      'model.vocab_size=133145: must be at most 133144',
    ),
  ],
)
def test_a_sum_that_an_int32_may_not_hold_is_refused(
  changes, quantization, message
):
  config = config_lib.ModelConfig(
    **changes,
    quantization=quantization_config.QuantizationConfig(**quantization),
  )
  with pytest.raises(ValueError, match=message):
    config_lib.check(config)


def test_the_longest_sums_and_those_of_floats_pass():
  config_lib.check(
    config_lib.ModelConfig(d_model=133_144, d_ff=66_311, vocab_size=200_000)
  )
  config_lib.check(
    config_lib.ModelConfig(
      d_model=200_000, d_ff=200_000, quantization=quantization_config.none()
    )
  )
