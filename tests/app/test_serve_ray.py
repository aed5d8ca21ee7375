"""What cannot work under Ray is refused before anything starts."""

import dataclasses
import importlib.util
import os
import re
import stat

import pytest

from kaiju_jax.app import serve
from kaiju_jax.app import serve_ray
from kaiju_jax.app import server_folder
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.decoding.device import memory
from kaiju_jax.interchange import own
from kaiju_jax.serving.routing import ray_local
from tests import source_files
from tests.decoding import toys

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
  imports = re.compile(r'^\s*(import|from) ray\b', re.M)
  found = [
    path for _, path, text in source_files.texts() if imports.search(text)
  ]
  assert found == ['kaiju_jax/serving/routing/ray_app.py']


def test_what_works_is_not_refused(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
  for settings in (
    {'ray': 'auto'},
    {'ray': 'host:1', 'replicas': 0},
    {'ingresses': 2, 'store': REDIS, 'points': 'all', 'metrics_port': 9100},
  ):
    serve_ray.check(settings_lib.Settings(**settings))


def test_replicas_share_a_cpu_and_have_gpus_of_their_own(tmp_path, monkeypatch):
  own.save(tmp_path / own.WEIGHTS, toys.drawn(toys.small()), toys.small())
  monkeypatch.setattr(memory, 'budget_cache', lambda devices: devices * 2**20)
  settings = settings_lib.Settings(
    ray='auto', model=str(tmp_path), replicas=4, tensor=2
  )
  assert serve_ray._shared_out(settings, gpus=0).cache == 2**19
  assert serve_ray._shared_out(settings, gpus=8) == settings
  # Otherwise each replica would start three times before Serve gave up.
  settings = dataclasses.replace(settings, tensor=4, cache=2**20)
  with pytest.raises(ValueError, match=r'num_heads=2: .* over 1, 2'):
    serve_ray._shared_out(settings, gpus=0)


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
