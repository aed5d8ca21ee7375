"""The report by its command: tables, JSON, and refusals of one line."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.experiments import forked

ROOT = pathlib.Path(__file__).parents[2]


def _run(*arguments, **environment):
  return subprocess.run(
    [sys.executable, '-m', 'experiments.aot_report', *arguments],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=250,
    env=os.environ | environment,
  )


def test_the_time_model_alone(tmp_path):
  path = tmp_path / 'figures' / 'model.json'
  done = _run(
    '--preset=110b', '--accelerator=h100_512', '--nocompile', f'--json={path}'
  )
  assert done.returncode == 0, done.stderr
  assert 'fsdp 64 × tensor 8' in done.stdout
  assert 'int8 both ways + Squinch' in done.stdout
  model = json.loads(path.read_text())['model']
  assert 'Ternary updates are ' in done.stdout
  assert model['ternary updates + Squinch']['update'] > 0
  assert model['int8 forward']['matmul'] < model['bf16']['matmul']
  assert model['bf16 + Squinch']['fsdp'] < model['bf16']['fsdp']


@pytest.mark.slow
@pytest.mark.parametrize('weights', ['int8', 'ternary'])
def test_a_compiled_step_on_cpu(tmp_path, weights):
  path = tmp_path / 'tiny.json'
  done = _run(
    '--config=experiments/configs/tiny.py',
    '--accelerator=cpu_8',
    '--config.model.num_layers=1',
    '--config.model.period=0',
    '--config.model.quantization.wire_gradients=float',
    f'--config.model.quantization.wire_weights={weights}',
    f'--json={path}',
  )
  assert done.returncode == 0, done.stdout + done.stderr
  figures = json.loads(path.read_text())
  assert figures['problems'] == []
  assert figures['aliased_bytes'] >= 0.99 * figures['state_bytes']
  assert figures['compile_seconds'] > 0
  assert 's8×s8→s32' in figures['matmuls']
  # Codes cross in each step, or trits do, and codes only to heal.
  gathered = {
    (row['dtype'], row['rare'])
    for row in figures['wire'] + figures['small']
    if (row['kind'], row['axes']) == ('all-gather', ['fsdp'])
    and row['dtype'] in ('s8', 'u8')
  }
  if weights == 'int8':
    assert gathered == {('s8', False)}
  else:
    assert gathered == {('u8', False), ('u8', True), ('s8', True)}
    assert 'all-gather, in some steps' in done.stdout


BAD = [
  (('--preset=13b', '--accelerator=h200'), "accelerator='h200': must be one"),
  (
    ('--preset=13b', '--accelerator=h100_64', '--fsdp=7'),
    'model.d_model=5120: does not divide over mesh.fsdp=7',
  ),
  (
    ('--preset=13b', '--accelerator=h100_64', '--fsdp=4', '--tensor=4'),
    'mesh.fsdp=4 × mesh.tensor=4 is 16 devices, but h100_64 has 64',
  ),
  (('--preset=13b',), '--accelerator is missing'),
  (('--accelerator=cpu_8',), 'exactly one of --preset and --config'),
  (
    ('--preset=14b', '--accelerator=cpu_8'),
    '--preset=14b: value should be one of',
  ),
]


@pytest.fixture(scope='module')
def refused():
  commands = [
    ['experiments.aot_report', *arguments, '--nocompile']
    for arguments, _ in BAD
  ]
  return dict(zip([arguments for arguments, _ in BAD], forked.run(commands)))


@pytest.mark.parametrize(('arguments', 'said'), BAD)
def test_bad_input_is_one_line(refused, arguments, said):
  done = refused[arguments]
  assert done.returncode
  assert said in done.stdout + done.stderr
  assert 'Traceback' not in done.stderr
