"""The codecs script: a small run writes tables, JSON and a plot."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def run(*arguments):
  return subprocess.run(
    [sys.executable, '-m', 'experiments.codecs', *map(str, arguments)],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=280,
  )


@pytest.mark.slow
def test_a_small_run(tmp_path):
  (tmp_path / 'texts').mkdir()
  for n in range(12):
    (tmp_path / 'texts' / f'{n}.txt').write_text(f'{n} green bottles. ' * 60)
  overrides = {
    'model.d_model': 32,
    'model.num_layers': 1,
    'model.num_heads': 2,
    'model.head_dim': 16,
    'model.d_ff': 32,
    'model.max_length': 64,
    'data.path': tmp_path / 'texts',
    'data.length': 32,
    'data.batch': 2,
    'data.held_out': 0.2,
  }
  done = run(
    '--steps=2',
    '--workers=2',
    f'--json={tmp_path / "out" / "codecs.json"}',
    f'--figure={tmp_path / "out" / "codecs.png"}',
    *(f'--config.{name}={value}' for name, value in overrides.items()),
  )
  assert done.returncode == 0, done.stderr
  for word in ('mxfp6 e3m2', 'step 2', 'Written'):
    assert word in done.stdout
  assert (tmp_path / 'out' / 'codecs.png').stat().st_size > 10_000
  found = json.loads((tmp_path / 'out' / 'codecs.json').read_text())
  codecs = found['codecs']
  assert codecs['f32']['quality']['all']['snr'] is None  # Exact.
  of_zero = codecs['zero']['quality']
  assert {'w_in_DF', 'w_o_DHK', 'embedding_DV', 'all'} <= set(of_zero)
  # float32 gradients: bf16 is not exact on them.
  assert 40 < codecs['bf16']['quality']['all']['snr'] < 70
  assert (
    codecs['int8']['quality']['all']['snr']
    > codecs['int6']['quality']['all']['snr']
    > codecs['int4']['quality']['all']['snr']
  )
  assert found['setting']['config']['model']['d_model'] == 32
