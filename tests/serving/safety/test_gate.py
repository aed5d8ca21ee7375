"""The gate gives what scikit-learn gives, and comes back from its file."""

import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pytest

from kaiju_jax.serving.safety import gate as gate_lib
from kaiju_jax.serving.safety import hashed
from kaiju_jax.serving.safety import reading
from kaiju_jax.storage import tensor_file
from tests.serving import planted
from tests.serving.safety import disguises

VIEWS = {
  'default': gate_lib.Settings().views,
  'signed': (gate_lib.View('plain', 'char', 1, 3, binary=False),),
  'l2': (
    gate_lib.View('skeleton', 'char', 2, 4, binary=False, norm='l2'),
    gate_lib.View('plain', 'word', 1, 2, norm='l2'),
  ),
}
TEXTS = (
  '',
  'ab',
  'The cat and the hat, and the cat again. ' * 3,
  'Ça va? Да, хорошо! 好的 🙂 ' * 4,
)


def random_gate(views, segment=10**4, features=512, dtype=np.float64):
  rng = np.random.default_rng(3)
  settings = gate_lib.Settings(('a', 'b'), views, features, 2000, segment)
  return gate_lib.Gate(
    settings,
    rng.normal(size=(len(views) * features, 2)).astype(dtype),
    rng.normal(size=2).astype(dtype),
    dataclasses.replace(planted.TRAINED, violations=(1, 2)),
  )


def scikit_learn(gate, plain):
  """Returns the logits and probabilities of one segment, as it was read."""
  text_lib = pytest.importorskip(
    'sklearn.feature_extraction.text', reason='scikit-learn is not installed'
  )
  from sklearn import linear_model

  read = {'plain': lambda x: x, 'skeleton': reading.skeleton}
  values = [
    text_lib.HashingVectorizer(
      analyzer=view.analyzer,
      ngram_range=(view.low, view.high),
      token_pattern=hashed.WORD if view.analyzer == 'word' else None,
      preprocessor=read[view.reading],
      n_features=gate.settings.features,
      binary=view.binary,
      norm=None if view.norm == 'none' else view.norm,
    )
    .transform([plain])
    .toarray()
    for view in gate.settings.views
  ]
  value_NV = np.concatenate(values, axis=1)
  logits, probabilities = [], []
  for weight_V, bias in zip(gate._weight_VC.T, gate._bias_C):
    model = linear_model.LogisticRegression()
    model.classes_ = np.array([False, True])
    model.coef_, model.intercept_ = weight_V[None], np.array([bias])
    logits.append(model.decision_function(value_NV)[0])
    probabilities.append(model.predict_proba(value_NV)[0, 1])
  return np.array(logits), np.array(probabilities)


@pytest.mark.parametrize('views', VIEWS)
def test_scores_are_scikit_learns(views):
  gate = random_gate(VIEWS[views])
  rng = np.random.default_rng(4)
  for text in *TEXTS, disguises.random_text(rng, 100):
    logit_C, score_C = scikit_learn(gate, reading.plain(text))
    np.testing.assert_allclose(gate.logits(text), logit_C, atol=1e-9)
    np.testing.assert_allclose(gate.score(text), score_C, atol=1e-9)


def test_features_that_cancel_leave_the_bias():
  """Two characters of one feature and opposite signs, of length 0."""
  view = gate_lib.View('plain', 'char', 1, 1, binary=False, norm='l2')
  gate = random_gate((view,), features=2)
  signs = {}
  for x in 'abcdefghijklmnopqrstuvwxyz':
    hash_G, _ = hashed.runs([x], 'char', 1, 1)
    feature_G, sign_G = hashed.features(hash_G, 2)
    signs.setdefault((int(feature_G[0]), float(sign_G[0])), x)
  text = signs[0, 1.0] + signs[0, -1.0]
  with np.errstate(all='raise'):
    np.testing.assert_array_equal(gate.logits(text), gate._bias_C)
  np.testing.assert_allclose(scikit_learn(gate, text)[0], gate._bias_C)


@pytest.mark.parametrize('views', VIEWS)
def test_the_highest_segment_counts(views):
  gate = random_gate(VIEWS[views], segment=20)
  for text in TEXTS:
    parts = reading.segments(reading.plain(text), 20)
    each_SC = [scikit_learn(gate, part)[0] for part in parts]
    np.testing.assert_allclose(
      gate.logits(text), np.max(each_SC, axis=0), atol=1e-9
    )
  assert len(parts) > 2


def test_all_of_a_long_text_is_read():
  gate = planted.gate()
  words = 'a b ' * 5_000
  for place in (0, 700, 1_000, 1_996, 10_000, 19_996):
    text = words[:place] + planted.ZORB + ' ' + words[place:]
    assert gate.score(text) > 0.9, place
    assert gate.score('. ' * 5_000 + text) > 0.9, place
  assert gate.score(words) < 0.1


@pytest.mark.parametrize('text', disguises.SKELETONS.values())
def test_a_disguise_that_breaks_words_does_not_pass(text):
  """By the skeleton's runs of characters, of which here one alone counts."""
  view = gate_lib.View('skeleton', 'char', 8, 8)
  settings = gate_lib.Settings(('zorb',), (view,), 2**12)
  weight_VC = np.zeros((2**12, 1))
  hash_G, _ = hashed.runs([planted.ZORB], 'char', 8, 8)
  weight_VC[hashed.features(hash_G, 2**12)[0]] = 20
  gate = gate_lib.Gate(settings, weight_VC, np.array([-10.0]), planted.TRAINED)
  assert gate.score(text) > 0.9
  assert gate.score('an ordinary text, of words') < 0.1
  assert gate.score('filler ' * 100 + text + ' filler' * 100) > 0.9


def test_extreme_logits_do_not_overflow():
  gate = random_gate(VIEWS['signed'])
  gate._bias_C[:] = 1e5, -1e5
  with np.errstate(all='raise', under='ignore'):
    assert gate.score('x').tolist() == [1.0, 0.0]


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_a_saved_gate_comes_back(tmp_path, dtype):
  gate = random_gate(VIEWS['l2'], segment=50, dtype=dtype)
  gate.save(tmp_path / 'gate')
  loaded = gate_lib.load(tmp_path / 'gate')
  assert loaded.version == gate.version and len(gate.version) == 64
  assert loaded.settings == gate.settings and loaded.trained == gate.trained
  for text in TEXTS:
    np.testing.assert_array_equal(loaded.score(text), gate.score(text))


def test_the_version_changes_with_everything():
  gate = random_gate(VIEWS['l2'])
  parts = [gate.settings, gate._weight_VC, gate._bias_C, gate.trained]
  changed_VC = gate._weight_VC.copy()
  changed_VC[100, 1] += 1e-7
  versions = {gate.version}
  for place, part in (
    (1, changed_VC),
    (2, gate._bias_C + 1),
    (3, dataclasses.replace(gate.trained, rows=11)),
    *(
      (0, dataclasses.replace(gate.settings, **changes))
      for changes in ({'window': 9}, {'segment': 10}, {'names': ('b', 'a')})
    ),
  ):
    changed = [*parts[:place], part, *parts[place + 1 :]]
    versions.add(gate_lib.Gate(*changed).version)
  assert len(versions) == 7


def rewritten(path, change):
  """Saves a gate whose tensors and metadata `change` has changed."""
  random_gate(VIEWS['signed']).save(path)
  tensors, metadata = tensor_file.read(path, 'kaiju_jax gate 1')
  change(tensors, metadata)
  tensor_file.write(path, tensors, metadata)


def settings_with(**changes):
  def change(tensors, metadata):
    settings = json.loads(metadata['settings'])
    view = settings['views'][0]
    for field, value in changes.items():
      (view if field in view else settings)[field] = value
    metadata['settings'] = json.dumps(settings)

  return change


BAD = {
  'format is': lambda t, m: m.update(format='kaiju_jax token_head 1'),
  'changed or damaged': lambda t, m: t['weight_VC'].__setitem__((0, 0), 9),
  'not finite': lambda t, m: t['bias_C'].__setitem__(0, math.nan),
  r'holds the tensors \[.bias_C.\]': lambda t, m: t.pop('weight_VC'),
  r'weight_VC is float64\[2, 2\]; 1 views of 512': lambda t, m: t.update(
    weight_VC=np.zeros((2, 2))
  ),
  'bias_C is int64': lambda t, m: t.update(bias_C=np.zeros(2, int)),
  'settings: not valid JSON': lambda t, m: m.pop('settings'),
  r'trained\.rows: missing': lambda t, m: m.update(
    trained=json.dumps(
      {'violations': [], 'data': '', 'date': '', 'library': ''}
    )
  ),
  r"reading='rot13': must be one of": settings_with(reading='rot13'),
  r"analyzer='char_wb': must be one of": settings_with(analyzer='char_wb'),
  r"norm='l1': must be one of": settings_with(norm='l1'),
  'low=5, high=3': settings_with(low=5),
  'high=9': settings_with(high=9),
  r'features=1: must be': settings_with(features=1),
  r'window=0: must be': settings_with(window=0),
  r'segment=7: must be even': settings_with(segment=7),
  r"names holds 'a'": settings_with(names=['a', 'a']),
  r'settings\.windw: no such field': settings_with(windw=3),
}


@pytest.mark.parametrize('message', BAD)
def test_bad_files_are_refused_by_name(tmp_path, message):
  path = tmp_path / 'gate'
  rewritten(path, BAD[message])
  with pytest.raises(ValueError, match=message) as caught:
    gate_lib.load(path)
  assert str(path) in str(caught.value)


def test_no_file_and_no_gate(tmp_path):
  with pytest.raises(FileNotFoundError):
    gate_lib.load(tmp_path / 'none')
  (tmp_path / 'text').write_text('hello')
  with pytest.raises(ValueError, match='not a whole safetensors file'):
    gate_lib.load(tmp_path / 'text')


def test_a_gate_runs_without_scikit_learn_and_jax(tmp_path):
  planted.gate().save(tmp_path / 'gate')
  code = (
    'import sys\n'
    'from kaiju_jax.serving.safety import gate, moderation\n'
    f'assert gate.load({str(tmp_path / "gate")!r}).score("zorbifex") > 0.9\n'
    'print([m for m in ("jax", "sklearn", "asyncio") if m in sys.modules])'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, timeout=250
  )
  assert done.stdout == '[]\n', done.stderr
