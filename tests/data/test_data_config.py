"""Bad settings of the data are refused with the field's name."""

import pytest

from kaiju_jax.data import config as data_config


def test_the_default_is_good():
  data_config.check(data_config.DataConfig())
  data_config.check(data_config.DataConfig(task='needle', held_out=0))


@pytest.mark.parametrize(
  ('name', 'value', 'right'),
  [
    ('length', 1, 'at least 2'),
    ('batch', 0, 'at least 1'),
    ('microbatches', 0, 'at least 1'),
    ('evaluated_rows', 0, 'at least 1'),
    ('held_out', 1.0, 'fraction'),
    ('held_out', -0.1, 'fraction'),
    ('held_out', float('nan'), 'fraction'),
  ],
)
def test_bad_values(name, value, right):
  with pytest.raises(ValueError, match=f'data.{name}={value!r}.*{right}'):
    data_config.check(data_config.DataConfig(**{name: value}))
