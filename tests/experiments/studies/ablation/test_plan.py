"""What an ablation runs: arms × seeds, checked before anything starts."""

import itertools
import pathlib
import re

import pytest

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.experiments.studies.ablation import ablate
from kaiju_jax.experiments.studies.ablation import cells
from kaiju_jax.runs import devices
from kaiju_jax.training import workdir
from tests.experiments import toys


@pytest.fixture
def config(tmp_path):
  (tmp_path / 'arms.py').write_text(toys.ARMS)
  return str(tmp_path / 'arms.py')


def planned(config, root, seeds=(0, 1), overrides=(), **settings):
  arms = cells.cross(config, dict.fromkeys(('plain', 'better'), 'plain'), {})
  return ablate.commands(arms, seeds, root, overrides, **settings)


def test_every_arm_s_first_seed_comes_before_any_second_one(config, tmp_path):
  found = planned(
    config, tmp_path / 'root', overrides=['--config.model.d_ff=8']
  )
  assert [command.name for command in found] == [
    'plain seed 0',
    'better seed 0',
    'plain seed 1',
    'better seed 1',
  ]
  command, last = list(found.items())[-1]
  assert last.folder == tmp_path / 'root' / 'better' / 'seed1'
  assert last.experiment.seed == 1
  assert last.experiment.model.d_ff == 8
  assert last.experiment.optimizer.learning_rate == 0.5
  assert command.words[1:] == (
    '-m',
    'experiments.train',
    f'--config={config}:better',
    '--config.seed=1',
    '--config.model.d_ff=8',
    f'--workdir={last.folder}',
  )


def test_a_root_of_other_experiments_is_refused(config, tmp_path):
  first, *_ = planned(config, tmp_path, (0,)).values()
  with workdir.open_workdir(first.folder, first.experiment):
    pass
  planned(config, tmp_path, (0,))
  with pytest.raises(ValueError, match=r'1\.0 in the workdir, 2\.0'):
    planned(config, tmp_path, (0,), ['--config.optimizer.learning_rate=2'])


def test_no_rotary_on_global_layers_can_be_typed(config):
  experiment = ablate.resolve(
    f'{config}:plain',
    ['--config.model.rope_global=0', '--config.model.rope_local=500'],
  )
  assert experiment.model.rope_global == 0
  assert experiment.model.rope_local == 500


@pytest.mark.parametrize(
  'source, message',
  [
    (None, 'no such file'),
    ('def get_config(arm=""): pass', 'has no ARMS'),
    ('ARMS = ()', 'has no ARMS'),
  ],
)
def test_a_config_without_arms_is_refused(tmp_path, source, message):
  path = tmp_path / 'config.py'
  if source is not None:
    path.write_text(source)
  with pytest.raises(ValueError, match=message):
    ablate.load(str(path))


def test_a_config_may_have_any_suffix(config, tmp_path):
  path = pathlib.Path(config).rename(tmp_path / 'arms.cfg')
  assert ablate.load(str(path)).ARMS == ('plain', 'better', 'broken')


def test_baselines():
  assert ablate.baselines(('a', 'b', 'c')) == {
    'a': 'a',
    'b': 'a',
    'c': 'a',
  }
  each = {'a': 'a', 'b': 'a', 'fast a': 'fast a', 'fast b': 'fast a'}
  assert ablate.baselines(each) == each
  assert ablate.baselines(each, ['fast b']) == {'fast b': 'fast a'}
  assert ablate.baselines(each, baseline='b') == dict.fromkeys(each, 'b')
  with pytest.raises(ValueError, match='--baseline=z'):
    ablate.baselines({'a': 'z'})


def settings(config, root, *grid, **fields):
  return settings_lib.Ablate(config=config, out=str(root), grid=grid, **fields)


VALUES = [
  *(
    '16',
    '016',
    '1e-3',
    '1e+3',
    '',
    ' ',
    'a b',
    'a  b',
    'a~b',
    'a-b',
    'a/b',
    'a,b',
    'A b',
  ),
  *('../..', '.', 'a"b', "a'b", '$HOME', '*', '?', 'a+b=c', 'ü', 'é', '~', '-'),
  *('x' * 41, 'x' * 40, 'x' * 300 + '1', 'x' * 300 + '2'),
]


def test_cells_have_names_of_their_own_that_any_shell_and_disk_take():
  words = ','.join('"{}"'.format(x.replace('"', '""')) for x in VALUES)
  grid = cells.parse([f'a.b={words}', f'c_d={words}'])
  assert grid == {'a.b': VALUES, 'c_d': VALUES}
  arms = {'': '', 'int8': 'int8', 'a+b': 'int8', 'x' * 90: 'int8'}
  found = cells.cross('tiny', arms, grid)
  assert len(found) == len(arms) * len(VALUES) ** 2
  names = {cell.name for cell in found}
  assert len(names) == len(found)
  for cell, baseline in found.items():
    assert re.fullmatch(r'[A-Za-z0-9._=+~-]+', cell.name) and baseline in names
    assert len(cell.name.encode()) <= 255
    assert not cell.name.startswith(('.', '-', '~'))
    assert cells.split(cell.name) == (cell.arm, ['a.b', 'c_d'])
  # A name depends on no other cell.
  [alone] = cells.cross('tiny', {}, {'a.b': ['a/b'], 'c_d': ['16']})
  assert alone.name in names
  assert cells.split('bf16+squinch') == ('bf16+squinch', [])
  assert cells.split('rate=.1', ['rate=.1']) == ('rate=.1', [])


@pytest.mark.parametrize(
  'text, values',
  [
    ('model.layout=L0 G1,L0:16', ['L0 G1', 'L0:16']),
    ('x="(1,2)","a ""b""",', ['(1,2)', 'a "b"', '']),
    ('x=y=1,z', ['y=1', 'z']),
    ('model.window', None),
    ('model.window=', None),
    ('=1', None),
    ('model window=1', None),
    ('seed=0,1', None),
    ('x=1,2,1', None),
    ('x="1,2', None),
    ('x="1"2,3', None),
  ],
)
def test_commas_part_values_but_in_quotes(text, values):
  if values is not None:
    assert [*cells.parse([text]).values()] == [values]
    with pytest.raises(ValueError, match='has values already'):
      cells.parse([text, text])
    return
  with pytest.raises(ValueError, match=re.escape(f'--grid={text}')):
    cells.parse([text])


def test_a_grid_crosses_the_arms_of_a_config_or_one_or_a_config_without(
  config, tmp_path
):
  grid = 'model.d_ff=8,16', 'data.batch=2,4'
  ends = [
    f'model.d_ff={d_ff}+data.batch={batch}'
    for d_ff, batch in itertools.product((8, 16), (2, 4))
  ]
  found = ablate.plan(settings(config, tmp_path, *grid, arms=('better',)))
  # The baseline of an arm is an arm, and comes along.
  names = [f'{arm}+{end}' for arm in ('better', 'plain') for end in ends]
  assert [cell.name for cell in found.cells] == names
  assert set(found.cells.values()) == {f'plain+{ends[0]}'}
  one = ablate.plan(settings(f'{config}:better', tmp_path, *grid))
  assert {cell: f'better+{ends[0]}' for cell in [*found.cells][:4]} == one.cells
  pathlib.Path(config).write_text(toys.ARMS.replace('ARMS =', 'NAMES ='))
  alone = ablate.plan(settings(f'{config}:better', tmp_path, *grid))
  assert [cell.name for cell in alone.cells] == ends
  assert {cell.config for cell in alone.cells} == {f'{config}:better'}
  chosen = settings(config, tmp_path, *grid, baseline=ends[2])
  assert set(ablate.plan(chosen).cells.values()) == {ends[2]}
  for wrong in ({'baseline': 'plain'}, {'arms': ('better',)}):
    with pytest.raises(ValueError, match=f'--{next(iter(wrong))}'):
      ablate.plan(settings(config, tmp_path, *grid, **wrong))


@pytest.mark.parametrize(
  'grid, overrides, words',
  [
    ('model.window=8,-1', (), ['+model.window=-1', 'model.window=-1']),
    ('model.window=8,wide', (), ['+model.window=wide', 'wide']),
    ('model.widow=8,9', (), ['model.widow=8', 'window']),
    ('data.length=8,99999', (), ['+data.length=99999', 'max_length']),
    ('model.d_ff=8,16', ('--config.model.d_ff=8',), ['--grid=model.d_ff']),
    ('optimizer.decay=.1,.2', (), ['decay=.1', 'decay=.2', 'same']),
    ('optimizer.learning_rate=.5,5e-1', (), ['_rate=.5', '=5e-1', 'same']),
  ],
)
def test_an_invalid_cell_is_refused_by_its_name_and_leaves_the_folder(
  grid, overrides, words, config, tmp_path
):
  root = tmp_path / 'root'
  (root / 'plain' / 'seed0').mkdir(parents=True)
  for _ in range(2):
    before = [(path, path.stat().st_mtime_ns) for path in root.rglob('*')]
    with pytest.raises(ValueError) as error:
      ablate.run(settings(f'{config}:plain', root, grid), overrides)
    for word in words:
      assert word in str(error.value)
    assert [(x, x.stat().st_mtime_ns) for x in root.rglob('*')] == before
    root = root / 'new'  # A folder that does not exist.
  assert not root.parent.exists()


@pytest.mark.parametrize(
  'paths, is_refused',
  [
    (['notes.txt'], True),
    (['config.json', 'checkpoints/3'], True),
    (['other/run/config.json'], True),
    (['.stores/x', '.hidden'], False),
    (['plain/seed0/log.txt', 'notes.txt'], False),
    (['slurm/jobs.json'], False),
    ([], False),
  ],
)
def test_a_folder_with_files_of_others_is_refused(
  config, tmp_path, monkeypatch, paths, is_refused
):
  root = tmp_path / 'root'
  root.mkdir()
  for path in paths:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).touch()
  monkeypatch.setattr(ablate, 'commands', lambda *_: 1 / 0)
  error = ValueError if is_refused else ZeroDivisionError
  with pytest.raises(
    error, match=f'--out={root}: has ' if is_refused else None
  ):
    ablate.run(settings(config, root), [])


def test_earlier_cells_of_a_folder_are_compared_with_later_ones(
  config, tmp_path
):
  def plan(*grid):
    found = ablate.plan(settings(f'{config}:plain', tmp_path, *grid))
    planned = ablate.commands(found.cells, (0,), tmp_path)
    others = ablate.find_others(found.config, tmp_path, (), planned.values())
    return planned, {job.arm: apart for _, job, apart in others}

  planned, others = plan('model.d_ff=8,16', 'data.batch=2,4')
  assert not others
  for job in planned.values():
    with workdir.open_workdir(job.folder, job.experiment):
      pass
  names = {job.arm for job in planned.values()}
  planned, others = plan('model.d_ff=8,32', 'data.batch=2')
  assert others == dict.fromkeys(
    names - {'plain+model.d_ff=8+data.batch=2'}, ''
  )
  # A value that is written otherwise is no other cell, whatever the seed.
  fields = 'model.d_ff=32,08', 'data.batch=2'
  found = ablate.plan(settings(f'{config}:plain', tmp_path, *fields)).cells
  for seed in (0, 1):
    planned = ablate.commands(found, (seed,), tmp_path)
    with pytest.raises(ValueError, match=r'=08\+\S+ has the values of \S+=8\+'):
      ablate.find_others(config, tmp_path, (), planned.values())
  # What a cell is not named for still sets it apart.
  words = ['--config.model.window=3', '--config.loop.trackers=']
  found = ablate.find_others(config, tmp_path, words, ())
  assert {apart for _, _, apart in found} == {'model.window'}


@pytest.mark.parametrize(
  'options, said',
  [
    ({}, '2 of 2 runs to do, 1 at a time.'),
    ({'launch': 'slurm'}, '--array=0-1 --time=240 .* --gpus-per-node=1 '),
    ({'launch': 'slurm', 'fsdp': 2, 'tensor': 2}, '--gpus-per-node=4 '),
    ({'launch': 'slurm', 'devices_per_job': 0}, '@120 --requeue'),
    ({'launch': 'slurm', 'devices_per_job': 3, 'module': 'x'}, 'node=3 '),
    ({'launch': 'slurm', 'devices_per_job': 3}, None),
    ({'devices_per_job': 3, 'module': 'x'}, None),
  ],
)
def test_a_dry_run_says_what_would_run(
  config, tmp_path, capsys, monkeypatch, options, said
):
  monkeypatch.setattr(devices, 'probe', devices.Accelerators)
  chosen = {'arms': ('plain', 'better'), 'seeds': (0,), 'dry_run': True}
  out = str(tmp_path / 'root')
  made = settings_lib.Ablate(config=config, out=out, **chosen, **options)
  if said is None:
    with pytest.raises(ValueError, match='--devices_per_job=3: '):
      ablate.run(made, [])
  else:
    assert ablate.run(made, []) == 0
    found = capsys.readouterr().out
    assert re.search(said, found) and found.count('--workdir=') == 2
  assert not (tmp_path / 'root').exists()
