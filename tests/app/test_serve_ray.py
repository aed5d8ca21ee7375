"""What cannot work under Ray is refused before anything starts."""

import ast
import importlib.util
import os
import stat

import pytest

from kaiju_jax.app import serve
from kaiju_jax.app import serve_ray
from kaiju_jax.app import server_folder
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.serving.routing import ray_local
from tests import source_files

REDIS = 'redis://127.0.0.1:1/0'


@pytest.mark.parametrize(
  'settings, fault',
  [
    ({'replicas': 0}, '--replicas=0: must be at least 1 with --ray=auto'),
    ({'ingresses': 2}, '--store=sqlite, --ingresses=2: .*redis://'),
    ({'points': 'all'}, '--store=sqlite, --points=all: .*redis://'),
    ({'drift': 'watch'}, '--drift=watch: must be none with --ray'),
    ({'ingresses': 2, 'store': REDIS}, '--ingresses=2: .*--metrics_port'),
  ],
)
def test_what_cannot_work_is_refused_by_name(settings, fault):
  with pytest.raises(ValueError, match=fault):
    serve_ray.check(settings_lib.Settings(ray='auto', **settings))


def test_a_missing_ray_names_the_extra(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(ImportError, match=r'--ray=auto: .*kaiju_jax\[ray\]'):
    serve_ray.check(settings_lib.Settings(ray='auto'))


def test_one_file_imports_ray():
  found = set()
  for _, path, tree in source_files.sources():
    for node in ast.walk(tree):
      names = [getattr(node, 'module', None) or '']
      if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      if 'ray' in {name.partition('.')[0] for name in names}:
        found.add(path)
  assert found == {'kaiju_jax/serving/routing/ray_app.py'}


def test_what_works_is_not_refused(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
  for settings in (
    {'ray': 'auto'},
    {'ray': 'host:1', 'replicas': 0},
    {'ingresses': 2, 'store': REDIS, 'points': 'all', 'metrics_port': 9100},
  ):
    serve_ray.check(settings_lib.Settings(**settings))


def test_each_ray_has_its_own_token(monkeypatch):
  monkeypatch.delenv('RAY_AUTH_TOKEN', raising=False)
  one, other = ray_local.environment(), ray_local.environment()
  assert one['RAY_AUTH_MODE'] == 'token'
  assert len(one['RAY_AUTH_TOKEN']) == 64
  assert one['RAY_AUTH_TOKEN'] != other['RAY_AUTH_TOKEN']
  # An operator who joins with other processes chooses one.
  monkeypatch.setenv('RAY_AUTH_TOKEN', 'mine')
  assert ray_local.environment()['RAY_AUTH_TOKEN'] == 'mine'


def test_replicas_have_folders_of_points_of_their_own(tmp_path):
  """All of them lose an owner who has no token any more."""
  one, other = (
    server_folder.open_points(tmp_path, 1, place)
    for place in ('kaiju-0', 'kaiju-1')
  )
  alone = server_folder.open_points(tmp_path, 1)
  assert len({x.path for x in (one, other, alone)}) == 3
  assert stat.S_IMODE(os.stat(one.path).st_mode) == 0o700
  who = one._pseudonym('owner', 'ann')
  files = [
    x.path / f'{y}-prefix-0{".points"}'
    for x in (one, other, alone)
    for y in (who, 'shared')
  ]
  for file in files:
    file.write_bytes(b'')
  server_folder.forget_owner(tmp_path, 'ann')
  assert [x.exists() for x in files] == [False, True] * 3


def test_adapters_take_no_other_codes():
  settings = settings_lib.Settings(model='model', lora='run', int8='none')
  with pytest.raises(ValueError, match='--int8=none, --kv=int8: must be all'):
    serve.load_model(settings)
