"""Contenders of `benchmarks.serve`: what is not installed is left out."""

import sys

from kaiju_jax.experiments.benchmarks.load_test import bench
from kaiju_jax.experiments.benchmarks.parts import settings as settings_lib
from tests.interchange import toys


def test_llama_cpp_is_left_out_without_xllamacpp(tmp_path, monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, 'xllamacpp', None)
  settings = settings_lib.ServeSettings(peers=('llama.cpp:float32',))
  config = toys.changed(toys.PLAIN, num_kv_heads=2)
  params = toys.params_of(config)
  assert not bench._peers(tmp_path, config, params, settings)
  said = capsys.readouterr().out
  assert said.startswith('llama.cpp:float32 is left out: ')
  assert 'xllamacpp' in said
