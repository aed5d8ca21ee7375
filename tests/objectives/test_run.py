"""A language run's workdir, then a head behind it: commands' whole path."""

import chex
import numpy as np
import pytest

from kaiju_jax.classifiers import heads
from kaiju_jax.data.store import corpora
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import load
from kaiju_jax.runs import train
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training.records import metrics

NAMES = ('digit', 'word')


def experiment(path, **fields) -> experiment_lib.Experiment:
  one = experiment_lib.Experiment(
    model=model_config.ModelConfig(
      d_model=32, num_layers=1, num_heads=2, head_dim=16, d_ff=32,
      max_length=32, window=1, dtype='float32',
      quantization=quantization_config.none(),
    ),
    **fields,
  )  # fmt: skip
  one.data.path = str(path)
  one.data.length = 32
  one.data.batch = 8
  one.data.held_out = 0.2
  one.data.evaluated_rows = 16
  one.optimizer.learning_rate = 0.3
  one.optimizer.warmup = 0.0
  one.optimizer.weight_decay = 0.0
  one.loop.steps = 80
  return one


def labelled(path, **fields):
  one = experiment(path, **fields)
  one.data.task = 'properties'
  one.objective.name = 'token_head'
  one.objective.token_head.names = NAMES
  one.objective.token_head.frozen = True
  return one


@pytest.fixture
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('texts')
  rng = np.random.default_rng(0)
  characters = np.array(list('ab c1 2.'))
  for number in range(20):
    text = ''.join(rng.choice(characters, 200))
    (path / f'{number}.txt').write_text(text)
  return path


@pytest.mark.slow
def test_a_head_learns_behind_the_model_of_another_run(folder, tmp_path):
  language = experiment(folder)
  language.loop.steps = 1
  language.optimizer.learning_rate = 1e-3
  train.train(language, tmp_path / 'language')
  trunk = load.from_workdir(tmp_path / 'language').params
  one = labelled(folder, begin_with=str(tmp_path / 'language'))
  state = train.train(one, tmp_path / 'head')
  for name in trunk:
    found, want = state.params[name], trunk[name]
    chex.assert_trees_all_equal(found, want)
  last = metrics.read(tmp_path / 'head')[-1]
  for name in NAMES:
    assert last[f'eval_accuracy/{name}'] > 0.98
  # The head can be read alone, and so can its trunk.
  head, config = heads.load_run(tmp_path / 'head')
  assert config.names == NAMES
  chex.assert_trees_all_equal(head, state.params['token_head'])
  chex.assert_trees_all_equal(
    load.from_workdir(tmp_path / 'head').params, trunk
  )
  with pytest.raises(ValueError, match="only a run of 'token_head' has a head"):
    heads.load_run(tmp_path / 'language')


@pytest.mark.parametrize(
  'field, value, message',
  [
    ('data.task', 'text', "'token_head': the rows of data.task='text' are for"),
    ('objective.name', 'language', "rows of data.task='properties' are for 't"),
    ('data.tokenizer', 'x', "tokenizer='x': must be ''"),
    ('objective.token_head.names', ('mood',), "'mood' must be one of 'digit'"),
    ('init', 'induction', "init='induction': parameters come from begin_with="),
  ],
)
def test_what_does_not_fit_together_is_refused(
  folder, monkeypatch, field, value, message
):
  monkeypatch.setattr(corpora, 'check', lambda *_: None)
  one = labelled(folder, begin_with='somewhere')
  *parents, name = field.split('.')
  holder = one
  for parent in parents:
    holder = getattr(holder, parent)
  setattr(holder, name, value)
  with pytest.raises(ValueError, match=message):
    train.check(one)
