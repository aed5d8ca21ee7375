"""Embedders by name; the hidden states of a model of ours."""

import re
import sys

import jax
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.data.curation import similarity
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import embedders
from kaiju_jax.runs import load
from kaiju_jax.training import state
from tests import toys


def test_names():
  assert isinstance(embedders.parse('ngrams'), similarity.Ngrams)
  assert isinstance(embedders.parse('lsa'), similarity.Lsa)


@pytest.mark.parametrize(
  'name, message',
  [
    ('word2vec', '--embedder=word2vec: must be one of ngrams, lsa, npy:FILE,'),
    ('ngrams:3', '--embedder=ngrams:3: must be one of'),
    ('npy', '--embedder=npy: must be one of'),
    ('model:', '--embedder=model:: must be one of'),
    ('npy:nowhere.npy', '--embedder=npy:nowhere.npy: no such file'),
    ('model:nowhere', 'nowhere/config.json: not'),
    ('t5:nowhere', '--embedder=t5:nowhere: no config.json there'),
  ],
)
def test_what_is_no_embedder_is_refused(name, message):
  with pytest.raises((OSError, ValueError), match=re.escape(message)):
    embedders.parse(name)


def test_a_missing_library_is_named(tmp_path, monkeypatch):
  (tmp_path / 'config.json').write_text('{}')
  monkeypatch.setitem(sys.modules, 'torch', None)
  with pytest.raises(ValueError, match=r"pip install 'kaiju_jax\[t5\]'"):
    embedders.parse(f't5:{tmp_path}')


def test_a_models_vectors_are_mean_hidden_states(tmp_path, monkeypatch):
  """Of each text alone, cut to a row: not of its neighbours in the row."""
  experiment = toys.tiny_experiment(tmp_path)
  experiment.model.layout = 'G0'
  experiment.model.dtype = 'float32'
  experiment.model.quantization = quantization_config.none()
  model = transformer.Transformer(experiment.model)
  params = state.draw_params(model, 0)
  loaded = load.Loaded(
    params, experiment.model, None, '', 'here', experiment, 4
  )
  monkeypatch.setattr(load, 'from_workdir', lambda path: loaded)
  embedder = embedders.parse('model:somewhere')
  texts = [
    'one',
    'two and three',
    'four ' * 20,
    'ü',
    *('x' * n for n in range(20)),
  ]
  found = embedder.embed(texts)
  assert found.shape == (24, 16) and found.dtype == np.float32
  length = experiment.data.length
  # The last one stands beside padding.
  some = [0, 1, 2, 3, -1]
  alone_BL = np.zeros((5, length), np.int32)
  for row_L, text in zip(alone_BL, (texts[one] for one in some)):
    tokens = [0, *text.encode()][:length]
    row_L[: len(tokens)] = tokens
  seen = visibility.concatenate([visibility.causal(length)] * 5)
  hidden_BLD = jax.jit(
    lambda tokens_BL: model.apply(
      {'params': params}, tokens_BL, seen, method='hidden'
    )
  )(alone_BL)
  for one, hidden_LD in zip(some, hidden_BLD):
    own = min(length, 1 + len(texts[one].encode()))
    np.testing.assert_allclose(
      found[one], hidden_LD[:own].mean(axis=0), atol=1e-4
    )
