"""The needle comparison from the command line, at a size for tests."""

import json

import pytest

from kaiju_jax.evaluation import answers
from kaiju_jax.experiments.configs import needle as config
from kaiju_jax.experiments.configs import needle_text as text_config
from kaiju_jax.experiments.studies import arms
from kaiju_jax.experiments.studies import needle as study
from kaiju_jax.experiments.studies import needle_figure
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.model import layers
from kaiju_jax.runs import grid
from kaiju_jax.runs import pool
from kaiju_jax.runs import train
from kaiju_jax.tasks.needle import questions as needle
from kaiju_jax.training import loop

get_config = config.get_config


def small(arm='kaiju'):
  experiment = get_config(arm)
  model = experiment.model
  model.num_layers, model.d_model, model.d_ff = 1, 16, 16
  model.period = min(model.period, 1)
  model.num_heads, model.head_dim = 2, 8
  model.attention = 'reference'  # It compiles sooner.
  experiment.data.batch = 1
  experiment.loop.steps = experiment.loop.checkpoint_every = 2
  return experiment


@pytest.fixture
def toy(monkeypatch):
  monkeypatch.setattr(config, 'get_config', small)


def run(out, **fields):
  given = {'questions': 1, 'jobs': 1, 'out': str(out), **fields}
  study.run(settings_lib.Needle(**given))


def test_end_to_end_and_not_twice_and_not_for_another(
  tmp_path, capsys, monkeypatch, toy
):
  # What runs for others leaves the report to them.
  run(tmp_path, arms=['local'], seeds=(3,), report=False)
  assert (tmp_path / 'local/seed3/needle.questions1.seed0.json').exists()
  assert not (tmp_path / 'needle.json').exists()
  assert 'finished before' not in capsys.readouterr().err

  # What is finished is neither trained nor asked again.
  monkeypatch.setattr(loop, 'train', None)
  run(tmp_path, arms=['local'], seeds=(3,))
  said = capsys.readouterr()
  assert said.err.count('1 of 1 runs: finished before') == 1
  printed = ' '.join(said.out.split())
  assert 'local, which sees 15 tokens: ' in printed
  assert 'what is under test is reach' in printed
  written = json.loads((tmp_path / 'needle.json').read_text())
  records = [needle.Record(**one) for one in written]
  assert {one[:2] for one in records} == {('local', 3)}
  cells = needle.cells(needle.Pairs(), 256, 1)
  asked = [(*one[2:6], one.count) for one in records]
  assert sorted(asked) == sorted(map(tuple, cells))
  assert all(0 <= one.accuracy <= 1 for one in records)
  assert (tmp_path / 'needle.png').read_bytes().startswith(b'\x89PNG')

  # Another experiment does not take these results for its own.
  def other(arm):
    experiment = small(arm)
    experiment.optimizer.learning_rate = 5e-4
    return experiment

  monkeypatch.setattr(config, 'get_config', other)
  with pytest.raises(ValueError, match=r'optimizer\.learning_rate: 0\.001 in'):
    run(tmp_path, arms=['local'], seeds=(3,))


def test_arms_of_one_seed_are_asked_the_same_and_other_seeds_are_not(
  monkeypatch,
):
  prompts = {}

  def reader(predict, params, lengths):
    def answer(tokens_BL, count):
      prompts[predict].append(tokens_BL.tolist())
      return tokens_BL[:, :count]

    return answer

  monkeypatch.setattr(answers, 'reader', reader)
  for arm, seed in (('full', 0), ('kaiju', 0), ('kaiju', 1)):
    experiment = get_config(arm)
    experiment.seed = seed
    prompts[arm, seed] = []
    job = grid.Job(arm, experiment, None)
    arms.NeedleQuestions(1, 0).answer(job, (arm, seed), None)
  assert prompts['full', 0] == prompts['kaiju', 0]
  for one, other in zip(prompts['kaiju', 0], prompts['kaiju', 1], strict=True):
    assert one != other


def test_runs_side_by_side_are_commands_whose_answers_are_gathered(
  tmp_path, capsys, monkeypatch, toy
):
  commands = []

  def run_all(given, places):
    assert len(places) == 2
    for one in given:
      commands.append(one.words)
      named = dict(word[2:].split('=') for word in one.words[3:])
      arm, seed = named['arms'], int(named['seeds'])
      records = [
        needle.Record(arm, seed, *cell[:-1], 0.5, cell.count)
        for cell in needle.cells(needle.Pairs(), 256, int(named['questions']))
      ]
      one.log.parent.mkdir(parents=True)
      if seed < 2:
        file = (
          one.log.parent / f'needle.questions{named["questions"]}.seed0.json'
        )
        file.write_text(json.dumps([record._asdict() for record in records]))
      yield pool.Ended(one.name, 0, 1.0)
    if seed == 3:
      raise KeyboardInterrupt

  monkeypatch.setattr(pool, 'run', run_all)
  monkeypatch.setattr(needle_figure, 'draw', lambda *_: None)
  run(tmp_path, arms=['full', 'local'], seeds=(0, 1), jobs=2, questions=2)
  assert [' '.join(command[1:]) for command in commands] == [
    f'-m experiments.needle --arms={arm} --seeds={seed} --out={tmp_path}'
    ' --task=needle --questions=2 --evaluation_seed=0 --jobs=1 --report=false'
    for arm in ('full', 'local')
    for seed in (0, 1)
  ]
  records = json.loads((tmp_path / 'needle.json').read_text())
  assert {(r['arm'], r['seed']) for r in records} == {
    (arm, seed) for arm in ('full', 'local') for seed in (0, 1)
  }
  assert '] full seed 0: finished' in capsys.readouterr().err
  # What ends without answers has failed, and its log is named.
  with pytest.raises(ValueError, match=r'full seed 2 .*see .*full/seed2/log'):
    run(tmp_path, arms=['full', 'local'], seeds=(2,), jobs=2)
  with pytest.raises(SystemExit) as interrupted:
    run(tmp_path, arms=['full', 'local'], seeds=(3,), jobs=2)
  assert interrupted.value.code == 130


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
    train.check(experiment)
    _, _, variant = arm.partition('_')
    is_start = variant in ('standard', 'previous')
    assert experiment.init == (variant if is_start else 'induction')
  with pytest.raises(ValueError, match="arm='x': must be one of full"):
    module.get_config('x')


@pytest.mark.slow
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
  fields = {'task': 'needle_text', 'data': str(folder)}
  run(tmp_path / 'run', arms=['interleaved_toy'], **fields)
  records = json.loads((tmp_path / 'run' / 'needle.json').read_text())
  assert {record['length'] for record in records} == {160, 320, 640, 1280}
  assert {record['distractors'] for record in records} == {1, 8}
  assert (tmp_path / 'run' / 'needle.png').exists()
