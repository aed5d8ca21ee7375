"""Bad settings of the data are refused with the field's name."""

import pytest

from kaiju_jax.data import config as data_config


def _source(**fields):
  return data_config.SourceConfig(**{'name': 'a', 'path': ''} | fields)


def _mixed(*sources, **fields):
  made = tuple(
    _source(name=one) if isinstance(one, str) else one for one in sources
  )
  return {'sources': made, **fields}


CLEAN = _source(name='clean', weight=0.0, anneal=1.0)


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'task': 'needle', 'held_out': 0},
    _mixed('a', 'b'),
    _mixed(CLEAN, 'b', anneal_at=0.8, anneal_over=0.2),
  ],
)
def test_good_settings(fields):
  data_config.check(data_config.DataConfig(**fields))


def test_annealing_weights_are_the_weights_unless_given():
  assert data_config.annealing_weights((CLEAN, _source())) == [1, 1]


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'length': 1}, 'data.length=1: .*at least 2'),
    ({'batch': 0}, 'data.batch=0: .*at least 1'),
    ({'microbatches': 0}, 'data.microbatches=0: .*at least 1'),
    ({'evaluated_rows': 0}, 'data.evaluated_rows=0: .*at least 1'),
    ({'held_out': 1.0}, 'data.held_out=1.0'),
    ({'held_out': -0.1}, 'data.held_out=-0.1'),
    ({'held_out': float('nan')}, 'data.held_out=nan'),
    (_mixed('a', 'a'), r"sources\[1\].name='a': is the name of two"),
    (_mixed(''), r"sources\[0\].name='': must"),
    (_mixed('a/b'), "name='a/b': must"),
    (_mixed(_source(weight=-1.0)), r'\(a\).weight=-1.0: must'),
    (_mixed(_source(weight=float('nan'))), 'weight=nan: must'),
    (_mixed(_source(anneal=-0.5)), 'anneal=-0.5: must'),
    (_mixed(_source(weight=0.0)), 'weight is 0 for all of a'),
    (_mixed(_source(anneal=0.0)), 'anneal is 0 for all of a'),
    (_mixed('a', path='x'), "data.path='x': must"),
    (_mixed(3), r'sources\[0\]=3: must'),
    (_mixed('a', anneal_at=1.5), 'anneal_at=1.5: must'),
    (_mixed('a', anneal_over=-1.0), 'anneal_over=-1.0: must'),
    (_mixed('a', anneal_at=0.9), 'anneal_at=0.9: no source'),
    (
      _mixed(_source(anneal=1.0), anneal_at=0.9, anneal_over=0.2),
      'anneal_at=0.9 and data.anneal_over=0.2',
    ),
    (_mixed('a', mix_block=0), 'mix_block=0: must'),
  ],
)
def test_bad_settings_are_named(fields, message):
  with pytest.raises(ValueError, match=message):
    data_config.check(data_config.DataConfig(**fields))
