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


def _mixed(*sources, **fields):
  made = tuple(
    data_config.SourceConfig(one, '') if isinstance(one, str) else one
    for one in sources
  )
  return data_config.DataConfig(sources=made, **fields)


def test_sources_with_weights_for_both_stages_are_good():
  data_config.check(_mixed('a', 'b'))
  clean = data_config.SourceConfig('clean', '', 0.0, anneal=1.0)
  data_config.check(_mixed(clean, 'b', anneal_at=0.8, anneal_over=0.2))
  assert data_config.annealing_weights(_mixed(clean, 'b').sources) == [1, 1]


def _source(**fields):
  return data_config.SourceConfig(**{'name': 'a', 'path': ''} | fields)


@pytest.mark.parametrize(
  ('config', 'message'),
  [
    (_mixed('a', 'a'), r"sources\[1\].name='a': is the name of two"),
    (_mixed(''), r"sources\[0\].name='': must be a name"),
    (_mixed('a/b'), "name='a/b': must be a name, without '/'"),
    (
      _mixed(_source(weight=-1.0)),
      r'\(a\).weight=-1.0: must be finite',
    ),
    (_mixed(_source(weight=float('nan'))), 'weight=nan: must be finite'),
    (
      _mixed(_source(anneal=-0.5)),
      'anneal=-0.5: must be .* or -1 for',
    ),
    (_mixed(_source(weight=0.0)), 'weight is 0 for all of a; at least one'),
    (_mixed(_source(anneal=0.0)), 'anneal is 0 for all of a; at least one'),
    (_mixed('a', path='x'), "data.path='x': must be '' where data.sources"),
    (_mixed(3), r'sources\[0\]=3: must be a SourceConfig. .* by flag'),
    (_mixed('a', anneal_at=1.5), 'anneal_at=1.5: must lie in 0…1'),
    (_mixed('a', anneal_over=-1.0), 'anneal_over=-1.0: must lie in 0…1'),
    (_mixed('a', anneal_at=0.9), 'anneal_at=0.9: no source has an annealing'),
    (
      _mixed(_source(anneal=1.0), anneal_at=0.9, anneal_over=0.2),
      'anneal_at=0.9 and data.anneal_over=0.2 are fractions of one run',
    ),
    (_mixed('a', mix_block=0), 'mix_block=0: must be at least 1'),
  ],
)
def test_sources_that_cannot_be_mixed(config, message):
  with pytest.raises(ValueError, match=message):
    data_config.check(config)
