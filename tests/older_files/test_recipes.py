"""CONTRIBUTING's recipes, followed in a copy of the package.

Each recipe ends in a run, and an older run is still the same experiment there.
"""

import ast
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests import pages

ROOT = pathlib.Path(__file__).parents[2]
# A class of settings and its field: what is added before each of these lines.
ADDED = {
  '@dataclasses.dataclass\nclass ObjectiveConfig:': (
    '@dataclasses.dataclass\nclass Smoothed:\n  amount: float = 100.0\n\n\n'
  ),
  '  chunk: int = 0\n': (
    '  smoothed: Smoothed = dataclasses.field(default_factory=Smoothed)\n'
  ),
}


@pytest.fixture
def package(tmp_path):
  """Returns a folder with a copy of the package, in which files are changed."""
  folder = tmp_path / 'clone'
  for path in ROOT.iterdir():
    if path.name in ('kaiju_jax', 'experiments', 'tests'):
      shutil.copytree(
        path,
        folder / path.name,
        symlinks=True,
        ignore=shutil.ignore_patterns('__pycache__'),
      )
    elif not path.name.startswith('.'):
      folder.mkdir(exist_ok=True)
      (folder / path.name).symlink_to(path)
  return folder


def recipe(title):
  """Returns the text under a title of CONTRIBUTING.md."""
  text = pages.pages()['CONTRIBUTING.md']
  (found,) = re.findall(rf'^## {title}\n(.*?)^## ', text, re.S | re.M)
  return found


def add_settings(package):
  assert 'needs a default' in recipe('Parts of your own')
  path = package / 'kaiju_jax/objectives/config.py'
  text = path.read_text()
  for before, lines in ADDED.items():
    assert text.count(before) == 1, before
    text = text.replace(before, lines + before)
  path.write_text(text)


def follow_arm(package):
  said = recipe('An arm')
  assert 'experiments/configs/' in said and '`ARMS`' in said
  path = package / 'experiments/configs/tiny.py'
  text = path.read_text()
  text = text.replace("'f32')\n\n", "'f32', 'small')\n\n", 1)
  text = text.replace(
    '  return experiment\n',
    "  if arm == 'small':\n"
    "    experiment.model.layout, experiment.model.d_model = 'L0', 16\n"
    '    experiment.model.d_ff, experiment.model.head_dim = 16, 8\n'
    "    experiment.model.dtype = 'float32'\n"
    '    experiment.data.length = 32\n'
    '    experiment.loop.steps = experiment.loop.log_every = 2\n'
    '  return experiment\n',
    1,
  )
  path.write_text(text)


def call(package, *words, cwd):
  done = subprocess.run(
    [sys.executable, *words],
    cwd=cwd,
    env={**os.environ, 'PYTHONPATH': str(package)},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )
  assert done.returncode == 0, done.stdout
  return done.stdout


_READ = """
import dataclasses, pathlib, sys
from kaiju_jax.objectives import config
from kaiju_jax.runs import train
from kaiju_jax.training import workdir
assert config.__file__.startswith(sys.argv[1])
for path in sorted(pathlib.Path('runs').iterdir()):
  found = workdir.load_experiment(path)
  assert found.objective.smoothed == config.Smoothed()
  workdir.check(path, found)
  if path.name in ('float', 'plain'):
    train.check(found)
  found.objective.smoothed.amount = 1.0
  try:
    workdir.check(path, found)
  except ValueError as error:
    assert 'objective.smoothed.amount: 100.0 in the workdir, 1.0' in str(error)
  else:
    raise AssertionError(path)
print('read', 'jax' in sys.modules)
"""


def test_a_field_leaves_earlier_runs_what_they_were(package, here):
  add_settings(package)
  said = call(package, '-c', _READ, str(package), cwd=here)
  assert said.endswith('read False\n')


@pytest.mark.slow
def test_what_the_recipes_add_trains_and_an_earlier_run_resumes(
  package,
  here,
):
  add_settings(package)
  follow_arm(package)
  words = '--config=tiny:small', '--workdir=arm'
  call(package, '-m', 'experiments.train', *words, cwd=here)
  held = json.loads((here / 'arm/config.json').read_text())
  assert held['objective']['smoothed'] == {'amount': 100.0}
  resume = (
    'import sys; from kaiju_jax.runs import train;'
    'from kaiju_jax.training import workdir;'
    "train.train(workdir.load_experiment('runs/float'), 'runs/float')"
  )
  said = call(package, '-c', resume, cwd=here)
  assert 'going on from step 3 of 6' in said and 'done, 6 steps' in said
  found = (here / 'runs/float/metrics.jsonl').read_text().splitlines()
  wanted = json.loads((here / 'expected.json').read_text())['runs']['float']
  for line, one in zip(found[3:], wanted, strict=True):
    assert json.loads(line)['step'] == one['step']
    if 'loss' in one:
      assert json.loads(line)['loss'] == pytest.approx(one['loss'], rel=1e-5)


# Every dataclass that is written to disk, or hashed into what is.
WRITTEN = {
  'characters/cards/card_fields.py': ('Fields', 'Lore'),
  'data/config.py': ('DataConfig', 'SourceConfig'),
  'distillation/config.py': ('Sampling',),
  'distillation/store.py': ('CorpusEntry', 'Settings'),
  'evaluation/persona/golden.py': ('GoldenConversation', 'Probe'),
  'model/config.py': ('ModelConfig',),
  'model/rope_scaling.py': ('RopeScalingConfig',),
  'objectives/config.py': (
    *('AttentionAlignment', 'Distillation', 'ObjectiveConfig', 'Preference'),
    'TokenHeadTraining',
  ),
  'quantization/config.py': ('QuantizationConfig',),
  'alignment/config.py': ('Settings',),
  'serving/http/auth.py': ('Token',),
  'serving/safety/blocked.py': ('Record',),
  'serving/safety/gate.py': ('Settings', 'TrainingRecord', 'View'),
  'serving/safety/thresholds.py': ('Limit', 'Policy', 'Stage', 'Tier'),
  'serving/stores/characters.py': ('Character', 'Message', 'Session'),
  'synthesis/form.py': ('Form',),
  'synthesis/settings.py': ('Settings',),
  'training/config.py': (
    *('LoopConfig', 'LoraConfig', 'OptimizerConfig', 'ZRegConfig'),
  ),
  'training/experiment.py': ('Experiment', 'PartsConfig'),
}


def add_field(path, cls):
  """Adds a field with a default behind the last one of a class."""
  lines = path.read_text().splitlines(keepends=True)
  (found,) = [
    node
    for node in ast.parse(''.join(lines)).body
    if isinstance(node, ast.ClassDef) and node.name == cls
  ]
  last = [x for x in found.body if isinstance(x, ast.AnnAssign)][-1]
  lines.insert(last.end_lineno, "  added_later: str = ''\n")
  path.write_text(''.join(lines))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_new_field_in_every_file_changes_no_older_one(package):
  for name, classes in WRITTEN.items():
    for cls in classes:
      add_field(package / 'kaiju_jax' / name, cls)
  words = '-q', '-m', 'not slow', '-p', 'no:cacheprovider'
  skipped = '--ignore=tests/older_files/test_recipes.py'
  call(
    package, '-m', 'pytest', *words, skipped, 'tests/older_files', cwd=package
  )
