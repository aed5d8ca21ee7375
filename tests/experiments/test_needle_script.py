"""The needle comparison from the command line, at a size for tests."""

import collections
import json

from absl.testing import flagsaver
import pytest

from experiments import needle as script
from experiments.configs import needle as config
from experiments.configs import needle_text as text_config
from kaiju_jax.evaluation.needle import questions as needle
from kaiju_jax.model import layers
from kaiju_jax.runs import tasks
from kaiju_jax.training import loop

get_config = config.get_config


def small(arm='kaiju'):
  experiment = get_config(arm)
  model = experiment.model
  model.num_layers, model.d_model, model.d_ff = 3, 16, 16
  model.period = {7: 3, 1: 1, 0: 0}[model.period]
  model.num_heads, model.head_dim = 2, 8
  experiment.data.batch = 1
  experiment.loop.steps = experiment.loop.checkpoint_every = 2
  return experiment


@pytest.fixture
def toy(monkeypatch):
  monkeypatch.setattr(config, 'get_config', small)


def run(workdir, **flags):
  values = {'questions': 1, 'seeds': ['0'], 'arms': None, **flags}
  script.flags.FLAGS.mark_as_parsed()
  with flagsaver.flagsaver(workdir=str(workdir), **values):
    script.main(['needle'])


def test_end_to_end_and_not_twice_and_not_for_another(
  tmp_path, capsys, monkeypatch, toy
):
  run(tmp_path, arms=['full', 'local'], seeds=['3'])
  records = json.loads((tmp_path / 'needle.json').read_text())
  assert {tuple(sorted(record)) for record in records} == {
    tuple(sorted(needle.Record._fields))
  }
  counted = collections.Counter((r['arm'], r['seed']) for r in records)
  cells = needle.cells(needle.Pairs(), 256, 1)
  assert counted == {(arm, 3): len(cells) for arm in ('full', 'local')}
  assert {(r['length'], r['distance'], r['distractors']) for r in records} == {
    (cell.length, cell.distance, cell.distractors) for cell in cells
  }
  assert all(0 <= record['accuracy'] <= 1 for record in records)
  assert (tmp_path / 'needle.png').read_bytes().startswith(b'\x89PNG')
  printed = ' '.join(capsys.readouterr().out.split())
  assert 'full, which sees the whole row: ' in printed
  assert 'local, which sees 45 tokens: ' in printed
  assert 'what is under test is reach' in printed

  # What is finished is neither trained nor asked again.
  monkeypatch.setattr(loop, 'train', None)
  (tmp_path / 'needle.png').unlink()
  run(tmp_path, arms=['full', 'local'], seeds=['3'])
  assert json.loads((tmp_path / 'needle.json').read_text()) == records
  assert (tmp_path / 'needle.png').exists()
  assert capsys.readouterr().out.count('finished before') == 2

  # Another experiment does not take these results for its own.
  def other(arm):
    experiment = small(arm)
    experiment.optimizer.learning_rate = 5e-4
    return experiment

  monkeypatch.setattr(config, 'get_config', other)
  with pytest.raises(SystemExit, match=r'optimizer\.learning_rate: 0\.001 in'):
    run(tmp_path, arms=['local'], seeds=['3'])


@pytest.mark.parametrize(
  'flags, message',
  [
    ({'arms': ['ful']}, "--arms: 'ful' is not one of full, interleaved, kaiju"),
    ({'arms': []}, '--arms and --seeds each need at least one'),
    ({'seeds': ['-1']}, "--seeds: '-1' is not a non-negative integer"),
    ({'seeds': ['x']}, "--seeds: 'x' is not a non-negative integer"),
    ({'seeds': ['9' * 20]}, 'seed=9{20}: must lie in'),
    ({'workdir': ''}, '--workdir=: must name a folder'),
    ({'workdir': 'gs://a'}, '--workdir=gs://a: gs:// is an address'),
    ({'data': 'folder'}, "--data='folder': only --task=needle_text"),
    ({'task': 'needle_text', 'data': '/nowhere'}, '/nowhere'),
  ],
)
def test_bad_flags_are_refused_before_anything_is_written(
  tmp_path, flags, message
):
  with pytest.raises(SystemExit, match=message):
    run(**{'workdir': tmp_path / 'new', **flags})
  assert not (tmp_path / 'new').exists()


def test_a_folder_that_cannot_be_made_is_a_line(toy):
  with pytest.raises(SystemExit, match='error: /proc/x/full/seed0: the folder'):
    run('/proc/x', arms=['full'])


def test_arms_are_the_layouts_that_they_name():
  drawn = {
    arm: layers.draw(get_config(arm).model.layers()) for arm in config.ARMS
  }
  assert drawn == {
    'full': 'G0 G1 G2 G3 G4 G5 G6',
    'interleaved': 'L0 L1 L2 L3 L4 L5 G6',
    'kaiju': 'L0 L0 L0 L3 L3 L3 G6',
    'local': 'L0 L1 L2 L3 L4 L5 L6',
  }
  kaiju = get_config('kaiju')
  quantization = kaiju.model.quantization
  assert (quantization.matmul, quantization.kv, quantization.qk) == (
    ('int8',) * 3
  )
  assert quantization.clamp_hidden == 'weight_rms'
  assert kaiju.optimizer.z_reg.attention > 0
  for arm in ('full', 'interleaved', 'local'):
    plain = get_config(arm)
    assert plain.model.quantization.matmul == 'none'
    assert plain.optimizer.z_reg.attention == 0
    # Nothing else differs: the same data, steps and initialization.
    assert plain.data == kaiju.data and plain.loop == kaiju.loop
    assert plain.init == kaiju.init == 'induction'


@pytest.mark.parametrize('module', [config, text_config])
def test_every_arm_and_variant_can_run(module):
  for arm in module.ARMS + module.VARIANTS:
    experiment = module.get_config(arm)
    script.train.check(experiment)
    tasks.check(experiment)
    expected = 'standard' if arm.endswith('_standard') else 'induction'
    assert experiment.init == expected
  with pytest.raises(ValueError, match="arm='x': must be one of full"):
    module.get_config('x')


def test_natural_text_runs_at_toy_size(tmp_path, monkeypatch):
  def short(arm):
    experiment = text_config_of(arm)
    model = experiment.model
    model.num_layers = model.period = 2
    model.d_model, model.num_heads, model.d_ff = 16, 2, 16
    model.head_dim = 8
    experiment.loop.steps = experiment.loop.checkpoint_every = 1
    return experiment

  text_config_of = text_config.get_config
  monkeypatch.setattr(text_config, 'get_config', short)
  folder = tmp_path / 'text'
  folder.mkdir()
  (folder / 'a.txt').write_text('some words of prose. ' * 400)
  run(
    tmp_path / 'run',
    task='needle_text',
    arms=['interleaved_toy'],
    data=str(folder),
  )
  records = json.loads((tmp_path / 'run' / 'needle.json').read_text())
  assert {record['length'] for record in records} == {160, 320, 640, 1280}
  assert {record['distractors'] for record in records} == {1, 8}
  assert (tmp_path / 'run' / 'needle.png').exists()
