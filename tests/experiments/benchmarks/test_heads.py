"""The benchmark of heads runs from its flags to a table per arm."""

import pytest

from tests.experiments import forked

pytestmark = pytest.mark.slow


def test_an_arm_is_trained_and_measured(tmp_path):
  flags = f'--out={tmp_path}', '--texts=3000', '--steps=1'
  (done, wrong) = forked.run(
    [
      ['experiments.benchmarks.heads', *flags, '--arms=shuffled'],
      ['experiments.benchmarks.heads', *flags, '--arms=pooled'],
    ],
    imported=forked.JAX,
  )
  assert done.returncode == 0, done.stderr
  for name in 'frequent', 'occasional', 'rare':
    assert f'| {name} |' in done.stdout
  assert wrong.returncode == 1
  assert "--arms: 'pooled' is not one of" in wrong.stderr
