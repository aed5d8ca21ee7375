"""What a benchmark's table derives from seconds and counts."""

import datetime
import json
import subprocess
import sys

import jax
import pytest

from kaiju_jax.kernels import ceilings
from kaiju_jax.kernels import report

_CEILINGS = ceilings.Ceilings(bf16_matmul=100.0, int8_matmul=200.0, copy=10.0)
_ROWS = [
  report.Row('attention', 'short', 'ours', 2.0, 100.0, 10.0, max_error=0.01),
  report.Row('attention', 'short', 'cudnn', 3.0, 100.0, 10.0, is_peer=True),
  report.Row('attention', 'long', 'ours', 4.0, 600.0, 20.0, 'int8_matmul'),
  report.Row('decode', 'short', 'ours', None, 1.0, 80.0, tiles=(1050, 1000)),
]


def _row(i):
  return report.make(_ROWS, _CEILINGS)['rows'][i]


def test_rates_and_how_near_they_come_to_what_is_possible():
  short, _, long, untimed = (_row(i) for i in range(4))
  assert short['operations_per_second'] == 50
  assert short['bytes_per_second'] == 5
  # Bound by operations and bytes alike, 1 s; took 2.
  assert short['of_ceiling'] == pytest.approx(0.5)
  # 600 int8 operations take 3 s, 20 bytes 2 s; took 4.
  assert long['of_ceiling'] == pytest.approx(0.75)
  assert untimed['of_ceiling'] is None
  assert untimed['operations_per_second'] is None
  by_bytes = report.Row('decode', 'long', 'ours', 10.0, 1.0, 80.0)
  found = report.make([by_bytes], _CEILINGS)
  assert found['rows'][0]['of_ceiling'] == pytest.approx(0.8)


def test_ratios_are_to_peers_at_the_same_shape():
  assert _row(0)['times'] == {'cudnn': 1.5}
  assert _row(1)['times'] == {}
  assert _row(2)['times'] == {}
  assert _row(3)['times'] == {}


def test_the_file_says_where_and_when(tmp_path):
  path = tmp_path / 'speed.json'
  report.write(report.make(_ROWS, _CEILINGS), path)
  found = json.loads(path.read_text())
  datetime.date.fromisoformat(found['date'])
  assert found['jax'] == jax.__version__
  assert found['platform'] == found['device'] == 'cpu'
  assert found['ceilings'] == _CEILINGS._asdict()
  assert found['rows'][3]['tiles'] == [1050, 1000]
  # What comes from a file is shown as well.
  report.show(found)


def _shown(platform, capsys):
  report.show(report.make(_ROWS, _CEILINGS) | {'platform': platform})
  return ' '.join(capsys.readouterr().out.split())


def test_a_cpu_shows_what_is_counted_and_no_time(capsys):
  text = _shown('cpu', capsys)
  assert report.NO_TIMES in text
  assert '1,050 / 1,000' in text
  assert '│ 0.01 │' not in text and '1.0e-02' in text
  for word in ' ms ', 'of ceiling', 'cudnn ┃', 'ceilings:':
    assert word not in text


def test_a_gpu_shows_times_against_ceilings_and_peers(capsys):
  text = _shown('gpu', capsys)
  assert report.NO_TIMES not in text
  assert 'Measured ceilings: 1e-10 TFLOP/s bf16, 2e-10 TOP/s int8' in text
  row = next(part for part in text.split('ours │')[1:])
  ours = [cell.strip() for cell in row.split('│')[:6]]
  assert ours == ['2000.000', '0.0', '0', '50%', '1.0e-02', '1.50']


_BENCH = """
from kaiju_jax.kernels import report
report.command(
  lambda repeats: [report.Row('toy', 'tiny', 'ours', float(repeats), 8, 4)]
)
"""


def test_the_command_measures_shows_and_writes(tmp_path):
  path = tmp_path / 'speed.json'
  text = subprocess.run(
    [sys.executable, '-c', _BENCH, '--repeats=2', f'--json={path}'],
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  assert 'toy' in text and '│ tiny ' in text
  found = json.loads(path.read_text())
  assert found['rows'][0]['seconds'] == 2
  assert found['ceilings']['copy'] > 0
