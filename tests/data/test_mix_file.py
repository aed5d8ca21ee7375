"""mix.json: what is written comes back, and a damaged one is refused."""

import json

import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.data import mix_file

SOURCES = (
  data_config.SourceConfig('code', 'data/code', 0.75),
  data_config.SourceConfig('prose', 'data/prose', 0.25, anneal=1.0),
)


def test_what_is_written_comes_back(tmp_path):
  path = tmp_path / 'mix.json'
  mix_file.write(path, SOURCES, {'method': 'em', 'target': 'data/exam'})
  assert mix_file.read(path) == SOURCES
  assert json.loads(path.read_text())['method'] == 'em'


def test_the_annealing_weight_may_be_left_out(tmp_path):
  source = {'name': 'code', 'path': 'x', 'weight': 1}
  (tmp_path / 'mix.json').write_text(json.dumps({'sources': [source]}))
  (found,) = mix_file.read(tmp_path / 'mix.json')
  assert found == data_config.SourceConfig('code', 'x', 1.0)


def test_its_weights_win_and_the_rest_stays(tmp_path):
  mix_file.write(tmp_path / 'mix.json', SOURCES, {})
  own = [
    data_config.SourceConfig('prose', 'elsewhere', 9.0, anneal=3.0),
    data_config.SourceConfig('code', 'there', 9.0),
  ]
  config = data_config.DataConfig(
    sources=tuple(own), mix=str(tmp_path / 'mix.json')
  )
  found = mix_file.resolve(config)
  assert found.mix == ''
  assert found.sources == (
    data_config.SourceConfig('prose', 'elsewhere', 0.25, anneal=3.0),
    data_config.SourceConfig('code', 'there', 0.75),
  )
  assert mix_file.resolve(found) is found
  config.sources = ()
  assert mix_file.resolve(config).sources == SOURCES


def _source(**fields):
  return json.dumps({'sources': [{'name': 'a', 'path': 'x'} | fields]})


@pytest.mark.parametrize(
  'text, message',
  [
    (None, 'no such file'),
    ('{"sources": [', 'not valid JSON'),
    ('[]', 'holds no list "sources"'),
    ('{"sources": []}', 'holds no list "sources"'),
    ('{"sources": [3]}', r'sources\[0\]=3: must'),
    ('{"sources": [{"name": "a"}]}', r'sources\[0\].path: missing'),
    (_source(weigth=1), r'\[0\].weigth: .* mean sources\[0\].weight'),
    (_source(weight=-0.1), r'sources\[0\] \(a\).weight=-0.1: must'),
    (_source(weight='1'), r"sources\[0\].weight='1': must"),
    (_source(weight=1), 'sources a, and data.sources code, prose'),
  ],
)
def test_what_cannot_be_read_is_refused(tmp_path, text, message):
  path = tmp_path / 'mix.json'
  if text is not None:
    path.write_text(text)
  config = data_config.DataConfig(sources=SOURCES, mix=str(path))
  with pytest.raises(
    (OSError, ValueError), match=rf"data.mix='.*mix.json': .*{message}"
  ) as error:
    mix_file.resolve(config)
  assert '\n' not in str(error.value)


def test_sources_that_a_run_would_refuse_are_not_written(tmp_path):
  twice = [SOURCES[0], SOURCES[0]]
  with pytest.raises(ValueError, match="name='code': is the name of two"):
    mix_file.write(tmp_path / 'mix.json', twice, {})
  with pytest.raises(ValueError, match="must not have a key 'sources'"):
    mix_file.write(tmp_path / 'mix.json', SOURCES, {'sources': 3})
  assert not list(tmp_path.iterdir())
