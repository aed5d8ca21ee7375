"""The report by its command: tables and JSON."""

import json

import pytest

from tests.experiments import forked


def _run(*arguments):
  (done,) = forked.run([['experiments.aot_report', *arguments]])
  return done


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


def test_decoding_by_arithmetic(tmp_path):
  path = tmp_path / 'decoding.json'
  common = '--decode', '--preset=110b', '--nocompile'
  done, refused = forked.run(
    [
      ['experiments.aot_report', *common, *arguments]
      for arguments in (
        ['--accelerator=h100_4', f'--json={path}'],
        ['--accelerator=h100_64', '--tensor=8'],
      )
    ]
  )
  assert done.returncode == 0, done.stderr
  figures = json.loads(path.read_text())['decoding']
  assert set(figures) == {'S', 'R', 'A', 'AR', 'TP', 'GQA-8'}
  for name, found in figures.items():
    assert f'{found["texts"]["8192"]:,}' in done.stdout
    assert f'{found["wire_bytes"]:,.0f}' in done.stdout
    assert sum(found['seconds']['64'].values()) > 0, name
  assert refused.returncode and '--tensor=8' in refused.stderr


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
