"""Objectives, tasks and layer functions from a file outside the repository."""

import json
import os
import pathlib
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.costs import footprint
from kaiju_jax.data import config as data_config
from kaiju_jax.data import packing
from kaiju_jax.experiments.studies.ablation import ablate
from kaiju_jax.interchange import own
from kaiju_jax.model import config as model_config
from kaiju_jax.model import feedforward
from kaiju_jax.model import transformer
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import grid
from kaiju_jax.runs import load
from kaiju_jax.runs import overrides
from kaiju_jax.runs import own_parts
from kaiju_jax.runs import rows
from kaiju_jax.runs import train
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.storage import parts
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import workdir as workdir_lib
from kaiju_jax.training.records import metrics
from tests import toys

REPOSITORY = pathlib.Path(__file__).parents[2]
FOCAL = (REPOSITORY / 'experiments' / 'configs' / 'focal.py').read_text()
# The example's objective, with a task, layer functions and a smaller model. It
# notes that it was executed.
SOURCE = (
  FOCAL[: FOCAL.index('ARMS =')]
  + """
import pathlib

import numpy as np

from kaiju_jax.data import config as data_config
from kaiju_jax.data import packing
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.tasks import registry

pathlib.Path(__file__).with_suffix('.ran').touch()


class Counting:
  def __init__(self, length):
    self._length = length

  def __len__(self):
    return 64

  def __getitem__(self, index):
    tokens = (np.arange(self._length) * 7 + index) % 64
    return packing.row([packing.Piece(tokens)], self._length)


def load(experiment):
  return registry.TaskData(Counting(experiment.data.length))


TASKS = {
  'counting': registry.Task(
    lambda experiment: None, load, lambda experiment, count: None
  )
}


def squared(hidden_BLF):
  import jax

  return jax.nn.relu(hidden_BLF) ** 2


def silu(gate_BLF):
  import jax

  return jax.nn.silu(gate_BLF)


OBJECTIVES = {'our_focal': make_focal}
ACTIVATIONS = {'squared': squared, 'negated': lambda x_BLF: -squared(x_BLF)}
GATES = {'our_silu': silu}
SETTINGS = Settings
ARMS = ('language', 'our_focal')


def get_config(arm='our_focal'):
  experiment = tiny.get_config()
  experiment.objective.name = arm
  experiment.data.task = 'counting'
  experiment.data.length = 32
  experiment.data.batch = 8
  experiment.data.held_out = 0.0
  experiment.model.layout = 'L0'
  experiment.model.vocab_size = 64
  experiment.model.d_model = 32
  experiment.model.d_ff = 32
  experiment.model.head_dim = 8
  experiment.model.dtype = 'float32'
  experiment.model.quantization = quantization_config.none()
  experiment.loop.steps = 4
  experiment.loop.log_every = 1
  experiment.loop.evaluate_every = 0
  return experiment
"""
)


@pytest.fixture(autouse=True)
def table(monkeypatch):
  """An empty table, as in a process that no file has been given to."""
  empty = {kind: {} for kind in parts.FIELDS}
  monkeypatch.setattr(parts, '_HELD', empty)
  return empty


@pytest.fixture
def file(tmp_path):
  file = tmp_path / 'mine.py'
  file.write_text(SOURCE)
  return file


def read(file, arm='our_focal', **values):
  """The experiment of a command with --config.FIELD=VALUE."""
  words = [f'--config.{x.replace("__", ".")}={y}' for x, y in values.items()]
  return ablate.resolve(f'{file}:{arm}', words)


def edit(file, old, new):
  text = file.read_text()
  assert old in text
  file.write_text(text.replace(old, new))


def test_rows_are_read_with_the_source_that_is_named(file, tmp_path, table):
  run, ours = tmp_path / 'run', tmp_path / 'ours'
  made, other = read(file), toys.tiny_experiment('')
  other.parts = made.parts  # As of an objective of one's own.
  for folder, experiment in (run, made), (ours, other):
    with workdir_lib.open_workdir(folder, experiment):
      pass
  for held in table.values():
    held.clear()
  own_parts.execute.cache_clear()
  file.with_suffix('.ran').unlink()
  with pytest.raises(ValueError, match=f"--parts=: must be '{file}'"):
    rows.read(run, 2)
  assert not file.with_suffix('.ran').exists()
  found = rows.read(run, 2, str(file))
  assert [one.number for one in found.rows] == [*range(8, 16)]
  for one in found.rows:
    wanted = (np.arange(32) * 7 + one.number) % 64
    np.testing.assert_array_equal(one.row.tokens, wanted)
  assert 'documents: 1' in rows.describe(found, 20)[0]
  found.rows[0].row.tokens[0] = 300  # No byte.
  assert rows.describe(found, 20)[1].endswith(': "300 15 22 29 36 43 5"…')
  edit(file, '* 7', '* 5')
  with pytest.raises(ValueError, match=r'parts\.digest'):
    rows.read(run, 2, str(file))
  with pytest.raises(ValueError, match=f"--parts={file}: must be ''"):
    rows.read(ours, 2, str(file))


def test_a_run_resumes_with_the_digest_it_began_with_and_no_other(
  file, tmp_path, table
):
  workdir = tmp_path / 'run'
  train.train(read(file), workdir, until=2)
  held = json.loads((workdir / 'config.json').read_text())['parts']
  assert held['source'] == str(file) and held['settings'] == {'gamma': 2.0}
  began, text = held['digest'], file.read_text()

  edit(file, '1 - jnp.exp', '1 + jnp.exp')
  other = read(file).parts.digest
  for resume in (
    lambda: train.train(read(file), workdir),
    lambda: grid.main([workdir]),
  ):
    with pytest.raises(ValueError) as caught:
      resume()
    for word in ('parts.digest', began, other, str(file), 'Bring back'):
      assert word in str(caught.value)
  assert workdir_lib.checkpoints(workdir) == [2]

  # The same bytes elsewhere are the same parts, and config.json says where.
  file.unlink()
  moved = tmp_path / 'elsewhere' / 'mine.py'
  moved.parent.mkdir()
  moved.write_text(text)
  with pytest.raises(ValueError, match=r'parts\.source.*cannot be read'):
    grid.main([workdir])
  train.train(read(moved), workdir, until=3)
  held = json.loads((workdir / 'config.json').read_text())['parts']
  assert (held['source'], held['digest']) == (str(moved), began)
  # A process that trains workdirs needs no more than that.
  for brought in table.values():
    brought.clear()
  grid.main([workdir])
  assert workdir_lib.checkpoints(workdir)[-1] == 4

  # Whatever reads the model executes nothing, and needs no file.
  for brought in table.values():
    brought.clear()
  ran = moved.with_suffix('.ran')
  ran.unlink()
  one = load.from_workdir(workdir)
  moved.unlink()
  chex.assert_trees_all_equal(load.from_workdir(workdir).params, one.params)
  assert not ran.exists() and not any(table.values())
  with pytest.raises(
    ValueError, match=r"data\.task='counting': must be one of"
  ):
    tasks.texts(one.experiment, 1)


def loss_of(one):
  """The sum of a batch's losses, under weights of a seed."""
  found = tasks.task_of(one).load(one)
  model, batch = state_lib.model_of(one), packing.stack([found.rows[3]])
  draw, z = np.random.default_rng(0), objective_lib.ZReg(0.0, 0.0)
  params = jax.tree.map(
    lambda x: draw.normal(size=x.shape, scale=0.3).astype(np.float32),
    transformer.parameter_shapes(one.model),
  )
  loss = state_lib.objective_of(one).loss
  return float(
    jax.jit(lambda x: loss(model, {'params': x}, batch, z))(params).loss
  )


def test_settings_reach_the_objective(file):
  plain, zero, two = map(
    loss_of,
    (
      read(file, 'language'),
      read(file, parts__settings__gamma=0.0),
      read(file),
    ),
  )
  assert plain == zero > two > 0
  small = {'model__layout': 'L0', 'model__d_model': 32, 'data__length': 256}
  ours = read('focal', 'focal', data__task='needle', **small)
  assert loss_of(ours) > 0 and ours.parts.settings.gamma == 2.0


@pytest.mark.slow
def test_eight_devices_do_as_one(file, tmp_path):
  losses = []
  for mesh in (None, sharding_config.MeshConfig(fsdp=4, tensor=2)):
    one = read(file, model__feedforward='our_silu')
    train.train(one, tmp_path / str(mesh), mesh)
    found = metrics.read(tmp_path / str(mesh))
    losses.append([record['loss'] for record in found])
  chex.assert_trees_all_close(*losses, rtol=1e-5)
  assert losses[0][-1] < losses[0][0]


@pytest.mark.slow
def test_arms_find_the_file_in_processes_of_their_own(file, tmp_path):
  def run(*words):
    return subprocess.run(
      [
        *(sys.executable, '-m', 'kaiju_jax.experiments', 'ablate'),
        *('--config=mine.py', '--out=out', '--seeds=0', '--jobs=1', *words),
      ],
      cwd=tmp_path,
      env={**os.environ, 'PYTHONPATH': str(REPOSITORY)},
      capture_output=True,
      text=True,
    )

  done = run('--config.loop.steps=2')
  assert done.returncode == 0, done.stderr
  report = (tmp_path / 'out' / 'report.md').read_text()
  digest = read(file).parts.digest
  assert 'our_focal' in report and f'--config.parts.digest={digest}' in report
  for arm, held in (
    ('our_focal', digest),
    ('language', read(file).parts.digest),
  ):
    folder = tmp_path / 'out' / arm / 'seed0'
    assert workdir_lib.checkpoints(folder) == [2]
    assert workdir_lib.load_experiment(folder).parts.digest == held
  edit(file, '1 - jnp.exp', '1 + jnp.exp')
  done = run('--config.loop.steps=2')
  assert done.returncode == 1 and 'parts.digest' in done.stderr


@pytest.mark.parametrize(
  'old, new, message',
  [
    ("{'our_focal':", "{'language':", 'there is a objective.name='),
    ("'counting': reg", "'text': reg", "TASKS\\['text'\\]: there is"),
    ("{'squared':", "{'swiglu':", 'there is a model.feedforward='),
    ("{'squared':", "{'our_silu':", "GATES\\['our_silu'\\]: there is"),
    ('make_focal(experiment)', 'make_focal()', r'function of \(experiment\)'),
    ('load(experiment)', 'load(data, more)', 'load must be a function'),
    ('squared(hidden_BLF)', 'squared(a, b)', r'function of \(hidden_BLF\)'),
    ("{'our_silu': silu}", "{'our_silu': 3}", 'is not a callable'),
    ("{'our_silu': silu}", 'silu', 'GATES must be a dict'),
    ("'counting': registry.Task(", "'counting': (", 'must be a kaiju_jax'),
    ('= Settings', '= 3', 'SETTINGS: TypeError'),
    ('gamma: float = 2.0', 'gamma: float', 'SETTINGS: TypeError'),
    ('import pathlib', 'import pathlip', r'mine\.py, line \d+: ModuleNotFound'),
  ],
)
def test_a_file_that_cannot_be_used_is_one_line(file, old, new, message):
  edit(file, old, new)
  with pytest.raises(ValueError, match=message) as caught:
    own_parts.bring(str(file))
  assert '\n' not in str(caught.value) and str(file) in str(caught.value)


@pytest.mark.parametrize(
  'old, new, message',
  [
    ('jnp.sum(batch.weight_BL),', 'batch.weight_BL,', r'shapes.*\(8, 32\)'),
    ('return objective.Sums(', 'return (', "'tuple' object"),
    ('return objective.Objective(loss)', 'pass', "'NoneType' object"),
    ('.settings.gamma', '.settings.gama', r'line \d+: AttributeError'),
    ('Objective(loss)', "Objective(loss, {'a_B': None})", "reads \\['a_B'\\]"),
    ('load(experiment):', 'load(experiment):\n  return 3', "'int' object"),
    ('Counting(experiment.data.length)', 'Counting(31)', r'shapes.*\(31,\)'),
    ('Counting(experiment.data.length)', '[[1] * 32]', r'shapes.*\(\)'),
    ('jax.nn.relu(hidden_BLF)', 'jax.nn.relu(hidden_BLF[0])', 'must keep'),
  ],
)  # fmt: skip
def test_a_result_of_another_shape_is_one_line_before_the_loop(
  file, tmp_path, old, new, message
):
  edit(file, old, new)
  one = read(file, model__feedforward='squared')
  with pytest.raises(ValueError, match=message) as caught:
    train.train(one, tmp_path / 'run')
  assert '\n' not in str(caught.value) and str(file) in str(caught.value)
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
  'values, message',
  [
    ({'objective__name': 'no'}, "'language'.*'token_head', 'our_focal',"),
    ({'data__task': 'no'}, "'text'.*'recall', 'counting',"),
    (
      {'model__feedforward': 'no'},
      "'relu2'.*'squared', 'negated', 'our_silu',",
    ),
    (
      {'data__task': 'needle', 'objective__name': 'distillation'},
      'the rows of',
    ),
    ({'data__task': 'choices'}, 'the rows of'),
    ({'parts__settings__gama': 1}, "Did you mean 'gamma'"),
    ({'parts__settings__gamma': 'x'}, 'gamma'),
    ({'parts__digest': 'sha256:0'}, "parts.digest='sha256:0'"),
  ],
)
def test_unknown_names_and_settings_are_refused(file, values, message):
  with pytest.raises(ValueError, match=message):
    read(file, **values)


def test_only_what_a_part_may_read_can_be_typed(file):
  own = read(file)
  overrides.check(own, {'parts.settings.gamma': 1.0, 'data.path': 'texts'})
  own.data.task = 'needle'
  overrides.check(own, {'parts.settings.gamma': 1.0})
  with pytest.raises(ValueError, match=r'data\.path'):
    overrides.check(own, {'data.path': 'texts'})
  own.objective.name = 'language'
  with pytest.raises(ValueError, match=r'parts\.settings\.gamma=1'):
    overrides.check(own, {'parts.settings.gamma': 1.0})


def test_an_arm_that_uses_none_has_none(file):
  plain = read(file, 'language', data__task='needle', model__vocab_size=256)
  assert plain.parts == type(plain.parts)()


def test_a_config_takes_the_parts_of_another_file(file, tmp_path):
  config = tmp_path / 'config.py'
  config.write_text(
    """
from kaiju_jax.experiments.configs import tiny

OBJECTIVES = {}  # Those of the other file count.

def get_config(arm):
  experiment = tiny.get_config()
  experiment.objective.name = 'our_focal'
  experiment.parts.source = arm
  return experiment
"""
  )
  one = read(config, file)
  assert one.parts == read(file).parts and one.parts.settings.gamma == 2.0
  assert read('tiny', 'f32', parts__source=file) == read('tiny', 'f32')
  other = {'objective__name': 'our_focal', 'parts__source': file}
  assert read('tiny', 'f32', **other).parts == one.parts
  with pytest.raises(ValueError, match=r'parts\.source=.*cannot be read'):
    read(config, tmp_path / 'none.py')


def test_an_objective_reads_a_mixture(file, tmp_path):
  one = read(file)
  texts = str(toys.write_texts(tmp_path))
  one.data.task, one.model.vocab_size = 'text', 256
  one.data.sources = tuple(
    data_config.SourceConfig(name=name, path=texts) for name in 'ab'
  )
  own_parts.check(one, tasks.task_of(one).load(one))


def test_hidden_activations_of_ones_own_have_a_sign_in_int8(file):
  own_parts.bring(str(file))
  made = []
  for matmul in ('int8', 'none'):
    quantization = quantization_config.none()
    quantization.matmul = matmul
    config = model_config.ModelConfig(
      layout='L0', d_model=32, d_ff=64, dtype='float32', feedforward='negated',
      quantization=quantization,
    )  # fmt: skip
    layer = feedforward.FeedForward(config)
    x_BLD = np.random.default_rng(0).normal(size=(1, 8, 32)).astype('float32')
    run = jax.jit(layer.init_with_output)
    made.append(np.ravel(run(jax.random.key(0), x_BLD, np.ones(32))[0]))
  assert np.corrcoef(*made)[0, 1] > 0.99


def test_a_loss_over_ternary_weights_is_left_to_the_step(file):
  one = read(
    file,
    model__quantization__matmul='int8',
    model__quantization__wire_weights='ternary',
  )
  own_parts.check(one, tasks.task_of(one).load(one))


def test_an_installed_package_brings_them_by_its_entry_point(
  tmp_path, monkeypatch
):
  info = tmp_path / 'our_parts-1.2.dist-info'
  info.mkdir()
  (info / 'METADATA').write_text('Name: our-parts\nVersion: 1.2\n')
  (info / 'entry_points.txt').write_text(
    '[kaiju_jax.parts]\nours = our_parts\n'
  )
  (tmp_path / 'our_parts.py').write_text(SOURCE)
  monkeypatch.syspath_prepend(tmp_path)
  one = read('tiny', 'f32', objective__name='our_focal')
  assert (one.parts.source, one.parts.digest) == ('ours', 'our-parts 1.2')
  assert one.parts.settings.gamma == 2.0
  (info / 'METADATA').write_text('Name: our-parts\nVersion: 1.3\n')
  with pytest.raises(ValueError, match=r"'our-parts 1\.2'.*'our-parts 1\.3'"):
    own_parts.resolve(one)
  entries = '[kaiju_jax.parts]\nours = our_parts\nother = our_parts\n'
  (info / 'entry_points.txt').write_text(entries)
  one.parts.source, one.parts.digest = '', ''
  with pytest.raises(ValueError, match='must be one of other, ours'):
    own_parts.resolve(one)
  one.parts.source = 'theirs'
  with pytest.raises(ValueError, match='there are other, ours'):
    own_parts.resolve(one)


@pytest.mark.parametrize(
  'name, same', [('squared', 'relu2'), ('our_silu', 'swiglu')]
)
def test_a_function_of_layers_stands_where_ours_does(
  file, tmp_path, table, name, same
):
  own_parts.bring(str(file))
  made = {}
  tokens_BL = jnp.arange(8)[None] % 5
  for one in (name, same):
    config = model_config.ModelConfig(
      layout='L0', d_model=16, d_ff=32, dtype='float32', feedforward=one,
      quantization=quantization_config.none(),
    )  # fmt: skip
    model = transformer.Transformer(config)
    logits_BLV, params = jax.jit(model.init_with_output)(
      jax.random.key(0), tokens_BL, visibility.causal(8)
    )
    made[one] = logits_BLV, footprint.count(footprint.parameters(config))
  chex.assert_trees_all_equal(made[name], made[same])
  config.feedforward = name
  with pytest.raises(ValueError, match=f'feedforward={name!r}: must be one'):
    own.save(tmp_path / 'a', params['params'], config)
  for brought in table.values():
    brought.clear()
  for refuse in (footprint.parameters, model_config.check):
    with pytest.raises(ValueError, match=f"feedforward='{name}': must be one"):
      refuse(config)
