"""A teacher's workdir becomes the start of another run."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.experiments.studies.ablation import ablate
from kaiju_jax.interchange import own
from kaiju_jax.interchange import plain
from kaiju_jax.interchange.surgery import pool
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import begin
from kaiju_jax.runs import load
from kaiju_jax.runs import student_config as config_text
from kaiju_jax.runs import train
from kaiju_jax.runs import uptrain
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training.records import metrics
from tests import toys as run_toys
from tests.interchange import family_folders
from tests.interchange import toys

TEACHER = toys.changed(toys.PLAIN, num_kv_heads=4)


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
  """A workdir."""
  path = tmp_path_factory.mktemp('uptrain') / 'teacher'
  run_toys.write_run(path, TEACHER)
  return path


@pytest.fixture(scope='module')
def start(teacher):
  """A student of it: one head, windows, shared keys, int8."""
  path = teacher.parent / 'start'
  said = uptrain.write(teacher, path, uptrain.Student('L0 L0 G2', 5))
  assert 'step 7 → ' in said
  # Three layers of 4 heads of 2·8 float32, against (8 + 4)·2 bytes per token of
  # a local owner's 5 positions and of a global one's 64.
  assert 'teacher: G0 G1 G2; 4 heads of keys and values, 768 bytes per' in said
  assert f'{24 * (64 + 5) / 64:,.0f} bytes per token at 64 tokens' in said
  assert said.endswith(f'--config={path}/config.py --workdir=WORKDIR')
  return path


def test_the_folder_has_the_config_of_a_run_that_begins_with_it(start):
  """As `experiments.train` reads it, with nothing beside."""
  one = ablate.resolve(f'{start}/config.py', ['--config.loop.steps=100'])
  held = load.from_anywhere(start)
  assert one.model == held.config
  assert one.begin_with == str(start) and one.data.length == 64
  assert one.data.tokenizer == ''  # The teacher read bytes.
  params = begin.params(one, one.begin_with, mesh_lib.single())
  jax.tree.map(np.testing.assert_array_equal, params, held.params)
  with pytest.raises(ValueError, match="arm='int8': must be 'align', or none"):
    ablate.resolve(f'{start}/config.py:int8', [])


def test_a_students_tokenizer_is_the_one_in_its_folder(start, tmp_path):
  text = config_text.write(student_config(), 'tokenizer.json')
  (tmp_path / 'config.py').write_text(text)
  (tmp_path / 'tokenizer.json').write_bytes(
    (start / 'tokenizer.json').read_bytes()
  )
  one = ablate.resolve(f'{tmp_path}/config.py', ['--config.begin_with='])
  assert one.data.tokenizer == str(tmp_path / 'tokenizer.json')
  assert one.model == student_config()


def student_config():
  return dataclasses.replace(
    TEACHER,
    num_kv_heads=1,
    layout='L0+2s L0+2s G2',
    window=5,
    quantization=quantization_config.QuantizationConfig(bungee=True),
  )


def test_a_run_begins_with_a_start_and_adds_what_changes_no_weight(start):
  held = load.from_anywhere(start)
  assert held.config.quantization.kv == 'int8'
  assert held.tokenizer.endswith('tokenizer.json')
  one = experiment_lib.Experiment(model=student_config())
  params = begin.params(one, start, mesh_lib.single())
  given = dict(jax.tree_util.tree_leaves_with_path(held.params))
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    if path[-1].key.startswith(('bungee_', 'sink_logit_')):
      assert path not in given and not np.any(leaf)
    else:
      np.testing.assert_array_equal(leaf, given[path])


def test_a_run_begins_with_a_run_and_adds_limits_of_channels(tmp_path):
  state = run_toys.write_run(tmp_path, toys.PLAIN)
  limits = {'kv': 'int8', 'kv_scale': 'channel'}
  model = toys.changed(toys.PLAIN, limits)
  one = experiment_lib.Experiment(model=model, begin_with=str(tmp_path))
  params = begin.params(one, tmp_path, mesh_lib.single())
  given = dict(jax.tree_util.tree_leaves_with_path(state.params))
  added = set()
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    if path in given:
      np.testing.assert_array_equal(leaf, given.pop(path))
    else:
      added.add(path[-1].key)
      assert (np.asarray(leaf) == 4).all()
  assert not given and added == {'k_limit_K', 'v_limit_K'}
  # What does not start alike in every model is still asked for.
  shapes = {'norm': {'gain_D': 1, 'k_limit_K': 2}, 'w_k_DK': 3}
  assert begin._omit_standard(shapes, {}) == {
    'norm': {'gain_D': 1},
    'w_k_DK': 3,
  }


def test_a_student_turns_its_keys_as_its_teacher_does():
  """Local layers that see everything are the teacher's, whatever its base."""
  teacher = dataclasses.replace(TEACHER, rope_global=50.0)
  student = uptrain.student_of(
    teacher, uptrain.Student('L0 L1 G2', 64, num_kv_heads=4, int8=False)
  )
  params = toys.params_of(teacher)
  tokens = np.random.default_rng(3).integers(0, 260, (1, 21), dtype=np.int32)

  def logits(config):
    model = transformer.Transformer(config)
    seen = visibility.causal(21)
    weights = plain.weights(params, teacher)
    own = pool.student(weights, config)
    return jax.jit(lambda p: model.apply({'params': p}, tokens, seen))(own)

  want = logits(teacher)
  np.testing.assert_allclose(
    logits(student), want, atol=2e-6 * np.abs(want).max()
  )


@pytest.mark.parametrize(
  'limits',
  [
    {},
    {'clamp_input': 'input_std', 'clamp_input_k': 5.0},
    {'clamp_hidden': 'weight_rms', 'clamp_hidden_k': 30.0},
  ],
)
def test_a_student_clamps_what_its_teacher_did(limits):
  quantization = dataclasses.replace(TEACHER.quantization, **limits)
  teacher = dataclasses.replace(TEACHER, quantization=quantization)
  student = uptrain.student_of(teacher).quantization
  assert student.matmul == 'int8'
  for name in quantization_config.CLAMPS:
    assert getattr(student, name) == getattr(quantization, name)


@pytest.mark.parametrize(
  'model, message',
  [
    (
      {'num_kv_heads': 2},
      r'model.num_kv_heads 1 there, 2 in this run\. .*w_k_DUK: has nothing',
    ),
    (
      {'d_ff': 8},
      r'model.d_ff 40 there, 8 in this run\. .*w_in_DF: .* \[1, 48, 40\]',
    ),
    (
      {'layout': 'L0 L1 G2', 'd_model': 16},
      r'model.d_model 48 there, 16 in this run; layers L0 L0 G2 there, L0 L1'
      r' G2 in this run\. --config=.*start/config\.py',
    ),
  ],
)
def test_a_start_of_another_shape_is_refused_with_its_cause(
  start, model, message
):
  model = {'layout': 'L0 L0 G2'} | model
  model = dataclasses.replace(student_config(), **model)
  one = experiment_lib.Experiment(model=model)
  with pytest.raises(ValueError, match=f'start.: .*{message}'):
    begin.params(one, start, mesh_lib.single())


def test_codes_and_another_tokenizer_are_refused(start, tmp_path):
  run = experiment_lib.Experiment(model=student_config())
  held = load.from_anywhere(start)
  own.save(tmp_path / 'codes', held.params, held.config)
  with pytest.raises(ValueError, match='holds int8 codes; training begins'):
    begin.params(run, tmp_path / 'codes', mesh_lib.single())
  file = start / 'tokenizer.json'
  other = tmp_path / 'tokenizer.json'
  swapped = {'"a": 97': '"a": 98', '"b": 98': '"b": 97'}
  text = file.read_text()
  for one_byte, another in swapped.items():
    text = text.replace(one_byte, another)
  other.write_text(text)
  assert other.read_text() != file.read_text()
  run.data.tokenizer = str(other)
  with pytest.raises(ValueError, match='is another tokenizer than'):
    begin.params(run, start, mesh_lib.single())


def test_a_folder_of_transformers_is_a_teacher_too(tmp_path):
  from kaiju_jax.interchange import hugging_face

  params = toys.params_of(TEACHER)
  hugging_face.write(tmp_path / 'arcee', params, TEACHER)
  uptrain.write(
    tmp_path / 'arcee',
    tmp_path / 'same',
    uptrain.Student('G0 G1 G2', num_kv_heads=4, int8=False),
  )
  found, config = own.load(tmp_path / 'same/model.safetensors')
  assert config.num_kv_heads == 4
  jax.tree.map(np.testing.assert_array_equal, found, params)


def test_a_family_is_fitted_to_a_text_which_chooses_what_shares(tmp_path):
  """QK-norm, gates, windows; the config names all that a run needs."""
  full, sliding = family_folders.FULL, family_folders.SLIDING
  fields = family_folders.fields_of('qwen3') | {
    'vocab_size': 260,
    'num_hidden_layers': 4,
    'max_window_layers': 4,
    'layer_types': [full, sliding, sliding, full],
  }
  teacher = family_folders.write(tmp_path / 'qwen3', fields)
  texts = run_toys.write_texts(tmp_path)
  out = tmp_path / 'start'
  wanted = uptrain.Student('G L+2s L+2s G', window=4)
  said = uptrain.write(
    teacher,
    out,
    wanted,
    uptrain.FirstWeights('fitted', text=str(texts), tokens=900),
  )
  assert 'fitted to 1,0' in said and said.count('of keys and values lost') == 1
  assert 'chosen: G0 L1+2s L1+2s G3' in said
  one = ablate.resolve(f'{out}/config.py', [])
  assert one.data.path == str(texts) and one.model.qk_norm == 'head'
  assert (one.model.window, one.model.num_kv_heads) == (4, 1)
  assert one.model.feedforward == 'swiglu'
  params = begin.params(one, one.begin_with, mesh_lib.single())
  held = load.from_anywhere(out)
  for path, leaf in jax.tree_util.tree_leaves_with_path(held.params):
    assert np.isfinite(leaf).all(), path
  assert jax.tree.structure(params) == jax.tree.structure(held.params)


@pytest.mark.parametrize(
  'wanted, start, message',
  [
    ({}, {'start': 'fitted'}, "start='fitted': "),
    ({}, {'start': 'best'}, "start='best': "),
    ({}, {'tokens': 0}, 'tokens=0: '),
    ({}, {'check_rows': 0}, 'check_rows=0: must be at least 1'),
    ({}, {'check_length': 1}, 'check_length=1: must be at least 2'),
    ({'layout': 'L L G'}, {}, "layout='L L G': "),
    ({'layout': 'L:8 L+4 Gs'}, {}, r"layout='L:8 L\+4 Gs': names no owners"),
  ],
)
def test_a_start_that_cannot_be_made_is_refused(wanted, start, message):
  with pytest.raises(ValueError, match=message):
    uptrain.write(
      'nowhere', 'out', uptrain.Student(**wanted), uptrain.FirstWeights(**start)
    )


def test_what_is_no_teacher_is_refused(teacher, start, tmp_path):
  with pytest.raises(FileNotFoundError, match='no such file or folder'):
    uptrain.write(tmp_path / 'nothing', tmp_path / 'out')
  with pytest.raises(ValueError, match='all must make their own'):
    uptrain.write(start, tmp_path / 'out')
  with pytest.raises(ValueError, match='num_kv_heads=3'):
    uptrain.write(teacher, tmp_path / 'out', uptrain.Student(num_kv_heads=3))
  with pytest.raises(FileExistsError):
    uptrain.write(teacher, start)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  'field, message',
  [
    ('begin_with=', "begin_with='': must"),
    (
      'objective.attention_alignment.teacher=',
      "attention_alignment.teacher='': must",
    ),
    ('loop.branch=runs/x', "loop.branch='runs/x': must"),
  ],
)
def test_an_alignment_that_cannot_begin_is_refused(start, field, message):
  with pytest.raises(ValueError, match=message):
    ablate.resolve(f'{start}/config.py:align', [f'--config.{field}'])


def test_another_teacher_than_the_configs_is_refused(start, tmp_path):
  config = f'{start}/config.py:align'
  field = '--config.objective.attention_alignment'
  for name, given, is_right in (
    ('layout', 'G0 G1 G1', 'G0 G1 G2'),
    ('num_kv_heads', '2', '4'),
  ):
    one = ablate.resolve(config, [f'{field}.{name}={given}'])
    with pytest.raises(ValueError, match=f'{name}=.*: must be .?{is_right}'):
      begin.read_teacher(one, tmp_path / 'run', mesh_lib.single())


@pytest.mark.slow
def test_attention_is_aligned_by_a_run_that_resumes(start, tmp_path):
  """Nothing else moves, and the next run begins with what it leaves."""
  texts = run_toys.write_texts(tmp_path)
  fields = {
    'data.path': texts,
    'data.length': 32,
    'data.batch': 2,
    'data.held_out': 0.2,
    'data.evaluated_rows': 2,
    'loop.steps': 6,
    'loop.log_every': 1,
    'loop.checkpoint_every': 3,
    'optimizer.learning_rate': 1e-2,
  }
  one = ablate.resolve(
    f'{start}/config.py:align', [f'--config.{k}={v}' for k, v in fields.items()]
  )
  programs = {}
  whole = train.train(one, tmp_path / 'whole', programs=programs)
  train.train(one, tmp_path / 'cut', until=3, programs=programs)
  again = train.train(one, tmp_path / 'cut', programs=programs)
  jax.tree.map(np.testing.assert_array_equal, again, whole)
  records = metrics.read(tmp_path / 'cut')
  losses = [one['loss'] for one in records if 'loss' in one]
  assert losses[-1] < losses[0]
  held = dict(jax.tree_util.tree_leaves_with_path(load.from_anywhere(start)[0]))
  for path, leaf in jax.tree_util.tree_leaves_with_path(whole.params):
    is_attention = any(key.key == 'attention' for key in path)
    assert np.array_equal(leaf, held[path]) != is_attention, path
  params = begin.params(one, tmp_path / 'cut', mesh_lib.single())
  jax.tree.map(np.testing.assert_array_equal, params, whole.params)


@pytest.mark.slow
def test_a_run_trains_from_an_import(tmp_path):
  """And its first loss is the imported model's, not that of fresh weights."""
  texts = run_toys.write_texts(tmp_path)
  one = run_toys.tiny_experiment(texts, steps=4)
  first = train.train(one, tmp_path / 'first')
  held = load.from_workdir(tmp_path / 'first')
  own.write(tmp_path / 'start', held.params, held.config, masters=True)
  again = run_toys.tiny_experiment(texts, steps=1)
  again.begin_with = str(tmp_path / 'start')
  again.optimizer.learning_rate = 1e-12
  state = train.train(again, tmp_path / 'again')
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
    state.params,
    first.params,
  )


def test_a_start_names_the_teacher_that_it_was_made_of(start, tmp_path):
  one = ablate.resolve(f'{start}/config.py:align', [])
  workdir = tmp_path / 'run'
  workdir.mkdir()
  begin.read_teacher(one, workdir, mesh_lib.single())
  moved = tmp_path / 'start'
  shutil.copytree(start, moved)
  held = json.loads((moved / 'teacher.json').read_text())
  other = {**held, 'digest': '0' * 32}
  (moved / 'teacher.json').write_text(json.dumps(other))
  one.begin_with = str(moved)
  with pytest.raises(ValueError, match=r'another teacher than .*start.*0000'):
    begin.read_teacher(one, workdir, mesh_lib.single())
  (moved / 'teacher.json').unlink()  # As an earlier version wrote it.
  begin.read_teacher(one, workdir, mesh_lib.single())
