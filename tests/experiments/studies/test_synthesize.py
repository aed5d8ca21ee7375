"""A synthesis by a model: resumed, refused, published whole."""

import json

import jax.numpy as jnp
import pytest

from kaiju_jax.data import documents
from kaiju_jax.experiments.studies import synthesize
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import load
from kaiju_jax.synthesis import form as form_lib
from kaiju_jax.synthesis import settings as settings_lib
from kaiju_jax.synthesis import variations
from kaiju_jax.training import state

# A model that has learnt nothing writes the markers now and then. No rule but
# the form's is in force.
SETTINGS = settings_lib.Settings(
  variations=6,
  temperature=1.0,
  top_p=1.0,
  question_tokens=60,
  answer_tokens=60,
  grounded=False,
  consistent=False,
  gain=-float('inf'),
  overlap=1.0,
  form=form_lib.Form(question='?', answer='\x11', end='\x12'),
)


@pytest.fixture(scope='module')
def loaded():
  config = model_config.ModelConfig(
    vocab_size=256,
    d_model=16,
    layout='L0 G1',
    window=8,
    num_heads=1,
    head_dim=8,
    d_ff=16,
    max_length=320,
    dtype='float32',
    quantization=quantization_config.none(),
  )
  params = state.init_params(transformer.Transformer(config), seed=0)
  # Markers with long vectors are likely as often as not.
  columns = jnp.array([ord(marker) for marker in '?\x11\x12'])
  (name,) = (name for name in params if 'embedding_DV' in params[name])
  table_DV = params[name]['embedding_DV']
  params[name]['embedding_DV'] = table_DV.at[:, columns].multiply(2)
  return load.Loaded(params, config, None, '', 'a model of this test')


@pytest.fixture
def texts(tmp_path):
  lines = [{'text': f'passage {i}.'} for i in range(5)]
  lines.append({'text': 'too long ' * 200})
  lines.append({'segments': [{'text': 'a', 'parent': -1}] * 2})
  path = tmp_path / 'texts.jsonl'
  path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
  return str(path)


class Stopped(Exception):
  """What interrupts a synthesis in this test."""


@pytest.mark.slow
def test_what_was_stopped_goes_on_to_the_same_bytes(loaded, texts, tmp_path):
  whole, parts = tmp_path / 'whole.jsonl', tmp_path / 'parts.jsonl'
  report = synthesize.synthesize(loaded, texts, whole, SETTINGS, rows=12)
  assert report.passages == 5
  assert report.unfit == ('texts.jsonl#6', 'texts.jsonl#7')
  assert sum(report.verdicts.values()) == 30
  assert report.verdicts.keys() <= {'kept', 'form'}

  def stop(done, total):
    if done:
      raise Stopped

  with pytest.raises(Stopped):
    synthesize.synthesize(loaded, texts, parts, SETTINGS, 12, noted=stop)
  assert not parts.exists()
  # Other rows than before: what is generated beside a text does not change it.
  again = synthesize.synthesize(loaded, texts, parts, SETTINGS, rows=8)
  assert again == report
  assert parts.read_bytes() == whole.read_bytes()
  trees = list(documents.read(str(whole)))
  assert len(trees) == report.trees >= 1
  assert sum(len(one.segments) - 1 for one in trees) == report.verdicts['kept']

  with pytest.raises(ValueError, match='exists already; name a new file'):
    synthesize.synthesize(loaded, texts, whole, SETTINGS)


def test_nothing_that_fits_is_refused(loaded, tmp_path):
  (tmp_path / 'long.txt').write_text('too long ' * 200)
  with pytest.raises(ValueError) as refused:
    synthesize.synthesize(
      loaded, str(tmp_path / 'long.txt'), tmp_path / 'out.jsonl', SETTINGS
    )
  assert 'none of the 1 documents' in str(refused.value)
  assert not (tmp_path / 'out.jsonl.journal').exists()


def test_a_question_that_stands_in_an_evaluation_set_is_leaked():
  def one(number, question, verdict='kept'):
    return variations.Variation(number, 0, question, 'Ada'), verdict

  long = 'Which of the seven persons in the house by the sea owns the old lute?'
  judged = {
    'a': [one(0, 'Who owns the lute?'), one(1, 'Who plays?', 'gain')],
    'b': [one(0, 'Who owns a lute?'), one(1, long)],
  }
  items = ['Tell me: who owns the lute? And since when?', f'{long} Ada.']
  found = synthesize.without_leaks(judged, items)
  assert [[verdict for _, verdict in own] for own in found.values()] == [
    ['leaked', 'gain'],
    ['kept', 'leaked'],
  ]
  assert judged['a'][0][1] == 'kept'
  assert synthesize.without_leaks(judged, []) == judged
