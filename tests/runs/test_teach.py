"""From a teacher and a student's text to a store, stopped and resumed."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.data import packing
from kaiju_jax.data import text as text_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.distillation import config as config_lib
from kaiju_jax.distillation import read
from kaiju_jax.distillation import store
from kaiju_jax.distillation import teach as teach_lib
from kaiju_jax.distillation import write
from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange import own
from kaiju_jax.interchange import tokens
from kaiju_jax.model import transformer
from kaiju_jax.runs import load
from kaiju_jax.runs import teach
from kaiju_jax.runs import train
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.training import interrupt
from tests import records
from tests import toys
from tests.interchange import toys as models

SAMPLING = config_lib.Sampling(draws=8, entries=8)


@pytest.fixture(scope='module')
def plan(texts):
  experiment = toys.tiny_experiment(texts)
  params = models.params_of(experiment.model)
  teacher = load.Loaded(params, experiment.model, None, '', 'drawn')
  answer = teach_lib.answering(
    transformer.Transformer(teacher.config), SAMPLING
  )
  with pytest.MonkeyPatch.context() as patched:
    # One compilation for all: each call would trace the same program anew.
    patched.setattr(teach_lib, 'answering', lambda *_: answer)
    yield teach.plan(teacher, experiment, SAMPLING, batch=16, shard=2)


@pytest.fixture(scope='module')
def whole(plan, texts):
  folder = texts.parent / 'store'
  assert teach.teach(plan, folder) == store.read_manifest(folder)
  return folder


def _bytes(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_training_text_is_taught_and_no_other(plan, whole, texts):
  (corpus,) = plan.corpora.values()
  manifest = store.read_manifest(whole)
  (taught,) = manifest.corpora.values()
  assert taught.tokens == taught.end == len(corpus.tokens)
  assert 5 < len(corpus.names) < 12
  reader = read.Reader(whole, text_lib.digest(corpus))
  found = reader(0, taught.tokens)
  has_teacher_N = np.ones(taught.tokens, bool)
  has_teacher_N[corpus.begins[:-1]] = False
  np.testing.assert_allclose(
    found['values_BLT'].sum(1), has_teacher_N, rtol=1e-6
  )


@pytest.mark.parametrize('stops', [[3], [5, 1, 1, 3]])
def test_ctrl_c_saves_and_the_same_call_goes_on(
  plan, whole, tmp_path, monkeypatch, stops
):
  class Interrupt(interrupt.Interrupt):
    """Ctrl-C after so many batches."""

    looks = iter(())

    def __init__(self):
      pass

    def __exit__(self, *_):
      pass

    def __enter__(self):
      return self

    @property
    def requested(self):
      return next(self.looks, 0) == 1

  monkeypatch.setattr(interrupt, 'Interrupt', Interrupt)
  ends = []
  for count in stops:
    Interrupt.looks = iter([*[0] * (count - 1), 1])
    assert teach.teach(plan, tmp_path / 'store') is None
    corpora = store.read_manifest(tmp_path / 'store').corpora.values()
    ends += [one.end for one in corpora]
  assert ends == sorted(ends) and ends[-1] < len(plan.corpora['text'].tokens)
  assert teach.teach(plan, tmp_path / 'store') is not None
  assert _bytes(tmp_path / 'store') == _bytes(whole)


def test_a_killed_run_goes_on(plan, whole, tmp_path, monkeypatch):
  add = write.Writer.add
  calls = itertools.count()

  def dying(self, targets):
    if next(calls) == 12:
      raise SystemExit('killed')
    add(self, targets)

  monkeypatch.setattr(write.Writer, 'add', dying)
  with pytest.raises(SystemExit):
    teach.teach(plan, tmp_path / 'store')
  (taught,) = store.read_manifest(tmp_path / 'store').corpora.values()
  assert 0 < taught.end < taught.tokens
  teach.teach(plan, tmp_path / 'store')
  assert _bytes(tmp_path / 'store') == _bytes(whole)


def test_a_mixture_carries_each_sources_own_targets(plan, tmp_path):
  """Two corpora in one store; documents cut at the rows' ends."""
  rng = np.random.default_rng(0)
  for name in 'ab':
    (tmp_path / name).mkdir()
    for number in range(6):
      text = ''.join(map(chr, rng.integers(97, 123, 150)))
      (tmp_path / name / f'{number}.txt').write_text(text)
  experiment = toys.tiny_experiment(tmp_path)
  experiment.data.path = ''
  experiment.data.held_out = 0.0
  experiment.data.sources = tuple(
    data_config.SourceConfig(name, str(tmp_path / name)) for name in 'ab'
  )
  both = teach.plan(plan.teacher, experiment, SAMPLING, batch=16, shard=2)
  assert list(both.corpora) == ['a', 'b']
  teach.teach(both, tmp_path / 'store')
  experiment.data.teacher = str(tmp_path / 'store')
  experiment.objective.name = 'distillation'
  experiment.objective.distillation.entries = 8
  readers = [
    read.Reader(tmp_path / 'store', text_lib.digest(corpus))
    for corpus in both.corpora.values()
  ]
  rows = tasks.rows(experiment)
  seen = set()
  for index in range(60):
    row = rows[index]
    part = int(row.extras[packing.COMPONENT])
    corpus = list(both.corpora.values())[part]
    for source in np.unique(row.source[row.source >= 0]):
      places = np.flatnonzero(row.source == source)
      piece = row.tokens[places].astype(np.uint8).tobytes()
      if len(piece) < 8:
        continue  # It might stand elsewhere, too.
      first = corpus.tokens.tobytes().find(piece)
      expected = readers[part](first, first + len(piece))
      for name, values in expected.items():
        np.testing.assert_array_equal(row.extras[name][places], values)
      seen.add((part, first))
  assert len({part for part, _ in seen}) == 2 and len(seen) > 40


@pytest.mark.slow
def test_a_student_learns_from_the_store(whole, texts, tmp_path):
  """Rows of another length and batch; held-out text has no teacher."""
  changes = {
    'data.length': 24,
    'data.batch': 3,
    'data.teacher': str(whole),
    'objective.name': 'distillation',
    'objective.distillation.entries': 10,
  }
  experiment = toys.change(toys.tiny_experiment(texts), changes)
  train.train(experiment, tmp_path / 'student', until=2)
  losses = [one['loss'] for one in records.of(tmp_path / 'student')]
  assert len(losses) == 2 and np.isfinite(losses).all()


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'data.teacher': ''}, r"data\.teacher='': "),
    ({'objective.name': 'language'}, r'data\.teacher=.*objective\.name='),
    (
      {'objective.distillation.entries': 3},
      r'objective\.distillation\.entries=3: .*8',
    ),
    (
      {'objective.distillation.temperature': 2.0},
      r'objective\.distillation\.temperature=2\.0: .*1\.0',
    ),
    ({'data.teacher': 'nowhere'}, r'nowhere.*not found'),
    ({'data.held_out': 0.5}, 'targets of another corpus'),
  ],
)
def test_a_student_without_its_own_teacher_is_refused(
  whole, texts, tmp_path, changes, message
):
  """Before anything compiles, and in a line that says what would be right."""
  right = {'data.teacher': str(whole), 'objective.name': 'distillation'}
  experiment = toys.change(toys.tiny_experiment(texts), right | changes)
  with pytest.raises((ValueError, FileNotFoundError), match=message):
    train.train(experiment, tmp_path / 'student')


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'sampling': config_lib.Sampling(draws=1)}, r'draws=1: '),
    ({'length': 100}, r'length=100: .*max_length=64'),
    ({'batch': -1}, r'batch=-1: '),
    ({'overlap': 0.7}, r'overlap=0\.7: '),
    ({'sampling': config_lib.Sampling('full')}, r'entries=50: .*256'),
  ],
)
def test_what_cannot_be_taught(plan, texts, changes, message):
  arguments = {'sampling': SAMPLING, **changes}
  with pytest.raises(ValueError, match=message):
    teach.plan(plan.teacher, toys.tiny_experiment(texts), **arguments)


def test_a_teacher_of_other_tokens_or_weights_is_refused(
  plan, whole, texts, tmp_path
):
  experiment = toys.tiny_experiment(texts)
  other = plan.teacher._replace(
    tokenizer=toys.write_tokenizer(tmp_path),
    config=dataclasses.replace(plan.teacher.config, vocab_size=260),
  )
  with pytest.raises(ValueError, match=r"data\.tokenizer='': must be that of"):
    teach.plan(other, experiment, SAMPLING)
  moved = jax.tree.map(lambda x: x + 1, plan.teacher.params)
  again = teach.plan(
    plan.teacher._replace(params=moved), experiment, SAMPLING, batch=16, shard=2
  )
  with pytest.raises(ValueError, match=r'store of other settings: teacher='):
    teach.teach(again, whole)


def test_a_tokenizer_is_known_by_what_it_does(tmp_path):
  """Bytes, and the file of an export whose tokens are bytes."""
  tokens.write(tmp_path, '', models.PLAIN)
  written = tokenizer_lib.load(str(tmp_path / tokens.FILE))
  own = tokenizer_lib.hash_use(tokenizer_lib.Bytes())
  assert tokenizer_lib.hash_use(written) == own
  other = tokenizer_lib.load(toys.write_tokenizer(tmp_path))
  assert tokenizer_lib.hash_use(other) != own


def test_teachers_of_three_kinds(tmp_path, monkeypatch):
  params = models.params_of(models.PLAIN)
  own.write(tmp_path / 'own', params, models.PLAIN, '')
  hugging_face.write(tmp_path / 'arcee', params, models.PLAIN, '')
  for folder in ('own', 'own/model.safetensors', 'arcee'):
    found = load.from_anywhere(tmp_path / folder)
    assert dataclasses.asdict(found.config) == dataclasses.asdict(models.PLAIN)
    jax.tree.map(np.testing.assert_array_equal, found.params, params)
    bytes_of_file = folder == 'own/model.safetensors'
    assert bool(found.tokenizer) != bytes_of_file
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run/config.json').write_text('{"model": {}}')
  monkeypatch.setattr(load, 'from_workdir', lambda path: f'run {path}')
  assert load.from_anywhere(tmp_path / 'run') == f'run {tmp_path / "run"}'
  (tmp_path / 'empty').mkdir()
  for folder, message in (
    ('none', 'no such file'),
    ('empty', 'holds no model'),
  ):
    with pytest.raises(FileNotFoundError, match=message):
      load.from_anywhere(tmp_path / folder)
