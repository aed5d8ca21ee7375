"""The README's data-parallel loop, which is not ours, learns with six bits."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
BLOCKS = re.findall(
  r'```python\n(.*?)```', (ROOT / 'README.md').read_text(), re.S
)


def test_the_loss_of_a_strangers_loop_falls(tmp_path):
  [loop] = [block for block in BLOCKS if 'squinch.transform' in block]
  done = subprocess.run(
    [sys.executable, '-c', loop],
    capture_output=True,
    text=True,
    timeout=120,
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': str(ROOT)},
  )
  assert done.returncode == 0, done.stderr
  losses = [float(loss) for loss in re.findall(r'loss ([\d.]+)', done.stdout)]
  assert len(losses) == 3
  assert losses[-1] < losses[1] < 0.8 * losses[0], losses
