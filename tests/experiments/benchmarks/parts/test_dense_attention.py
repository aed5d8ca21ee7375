"""The benchmark compares equals, and runs at toy size."""

import jax
import numpy as np
import pytest

from kaiju_jax.experiments.benchmarks.parts import dense_attention
from tests.experiments import forked


@pytest.mark.parametrize('window', [None, 20])
def test_contenders_compute_the_same(window):
  shape = dense_attention.Shape(80, window, heads=2, head_dim=8, batch=2)
  random = np.random.default_rng(0)
  operands = [
    random.normal(size=x.shape).astype(x.dtype)
    for x in dense_attention.operands(shape)
  ]
  ours, *others = (
    jax.tree.leaves(dense_attention.compile_step(name, shape)(*operands))
    for name in dense_attention.CONTENDERS
  )
  assert len(others) == 2
  for other in others:
    for x, y in zip(ours, other, strict=True):
      np.testing.assert_allclose(x, y, atol=2e-5)


@pytest.mark.slow
def test_four_times_the_length_takes_at_most_four_times_the_memory():
  def grown(name):
    short, long = (
      dense_attention.temporary_bytes(
        name, dense_attention.Shape(length, 64, heads=2, head_dim=16)
      )
      for length in (4096, 16384)
    )
    return long / short

  assert grown(dense_attention.OURS) < 4
  assert grown(dense_attention.DENSE_REMAT) > 12


@pytest.mark.slow
def test_the_experiment_prints_both_tables():
  words = (
    'experiments.benchmarks.attention --length=64 --window=8 --repeats=1'
    ' --causal_length=16 --memory_length=32,64 --heads=2 --head_dim=4'
  )
  text = forked.run([words.split()])[0].stdout
  assert 'median ms of 1 rounds' in text and 'growth' in text
  # A row of each table begins with its length.
  rows = [line.split()[1] for line in text.splitlines() if '│' in line]
  assert rows == ['64', '16', '32', '64', 'growth']
