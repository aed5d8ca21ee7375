"""A documented training loop that is not ours learns with six bits."""

import os
import re
import subprocess
import sys

from tests import pages


def test_the_loss_of_a_strangers_loop_falls(tmp_path):
  done = subprocess.run(
    [sys.executable, '-c', pages.OTHER_TRAINER.text],
    capture_output=True,
    text=True,
    timeout=120,
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': str(pages.ROOT)},
  )
  assert done.returncode == 0, done.stderr
  losses = [float(loss) for loss in re.findall(r'loss ([\d.]+)', done.stdout)]
  assert len(losses) == 3
  assert losses[-1] < losses[1] < 0.8 * losses[0], losses
