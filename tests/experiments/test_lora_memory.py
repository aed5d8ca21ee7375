"""The step of adapters takes a third of the memory of the step of all weights.

At the shape of a model of 0.6 billion parameters, compiled for a CPU: nothing
is allocated.
"""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_adapters_take_a_third_of_the_memory():
  command = '-m', 'experiments.benchmarks.lora_memory', '--ranks=16'
  done = subprocess.run(
    [sys.executable, *command], capture_output=True, text=True, check=True
  )
  print(done.stdout)
  rows = [line.split('|') for line in done.stdout.splitlines() if '|' in line]
  shares = {row[1].strip(): row[-2].strip() for row in rows}
  assert float(shares['all weights']) == 1
  assert 0 < float(shares['rank 16']) <= 0.35
