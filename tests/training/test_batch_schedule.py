"""Microbatches per step: one table of integers, on the host and the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import optimizer
from kaiju_jax.training import step as step_lib
from kaiju_jax.training import token_count


def experiment(batch='', microbatches=8, rows=1, length=16, **loop):
  return experiment_lib.Experiment(
    data=data_config.DataConfig(
      length=length, batch=rows, microbatches=microbatches
    ),
    optimizer=training_config.OptimizerConfig(batch=batch),
    loop=training_config.LoopConfig(**loop),
  )


def walk(schedule):
  """The counts of all steps, one after the other, as the run takes them."""
  counts, row = [], schedule.begins[1]
  while row < schedule.rows:
    counts.append(schedule.count(row))
    row += counts[-1] * schedule.batch
  return counts, row


def test_a_schedule_over_tokens_drawn_out():
  """30 microbatches: 2 up to the third, 4 up to the ninth, then 8."""
  made = experiment('0:2 0.1:4 0.3:8', rows=2, length=5, tokens=300)
  schedule = batch_schedule.schedule_of(made)
  assert walk(schedule) == ([2, 2, 4, 4, 8, 8, 2], 60)
  assert schedule.steps == 7
  assert schedule.tokens == 300 == step_lib.total_tokens(made)
  starts = [0, 4, 8, 16, 24, 40, 56, 60]
  assert [schedule.row_after(0, n) for n in range(8)] == starts
  assert [schedule.row_of(n) for n in range(8)] == starts


def test_a_schedule_over_steps_has_so_many_of_whole_batches():
  made = experiment('0:2 0.1:4 0.3:8', steps=100)
  schedule = batch_schedule.schedule_of(made)
  counts, row = walk(schedule)
  assert len(counts) == schedule.steps == 100
  assert row == schedule.rows == sum(counts)
  shares = [counts.count(n) * n / row for n in (2, 4, 8)]
  np.testing.assert_allclose(shares, [0.1, 0.2, 0.7], atol=8 / row)


def test_without_a_schedule_every_step_takes_all():
  made = experiment(steps=7, microbatches=3, rows=2)
  schedule = batch_schedule.schedule_of(made)
  assert walk(schedule) == ([3] * 7, 42)
  assert batch_schedule.is_full(made)
  assert not batch_schedule.is_full(experiment(tokens=100))


def test_no_step_and_no_token_is_lost_whatever_the_schedule():
  """The closed forms agree with the walk; it ends at the wanted token."""
  rng = np.random.default_rng(0)
  for _ in range(200):
    most, rows, length = (int(n) for n in rng.integers(1, 9, 3))
    later = np.unique(rng.integers(1, 99, rng.integers(0, 4)))
    text = ' '.join(
      f'{at / 100}:{rng.integers(1, most + 1)}' for at in (0, *later)
    )
    tokens = int(rng.integers(1, 5000))
    for made in (
      experiment(text, most, rows, length, tokens=tokens),
      experiment(text, most, rows, length, steps=int(rng.integers(1, 300))),
    ):
      schedule = batch_schedule.schedule_of(made)
      counts, row = walk(schedule)
      assert min(counts) >= 1 and max(counts) <= most
      assert row == schedule.rows and len(counts) == schedule.steps
      assert schedule.row_after(0, len(counts)) == row
      half = len(counts) // 2
      assert schedule.row_after(0, half) == sum(counts[:half]) * rows
      if made.loop.tokens:
        assert 0 <= schedule.tokens - tokens < rows * length
      else:
        assert len(counts) == made.loop.steps


def test_a_branch_off_the_grid_ends_at_the_same_token():
  schedule = batch_schedule.schedule_of(
    experiment('0:3 0.5:7', tokens=16 * 100)
  )
  branch = schedule.branch((40, 13))
  counts, row = walk(branch)
  assert row == 100 and branch.steps == 40 + len(counts)
  assert branch.row_of(40) == 13
  assert branch.row_of(branch.steps) == 100
  with pytest.raises(ValueError, match=r'loop\.tokens: the run ends at row'):
    schedule.branch((40, 100))


def test_the_device_counts_as_the_host_does_past_32_bits():
  """At every border and beside it, where floats of tokens are blind."""
  made = experiment(
    '0:2 0.123456789:4 0.3:8', rows=3, length=4088, tokens=3 * 10**11 + 7
  )
  schedule = batch_schedule.schedule_of(made)
  due = jax.jit(lambda tokens: step_lib.due(schedule, tokens))
  assert schedule.tokens > 2**38
  for first, _ in schedule.stages:
    for row in range(max(0, first - 1), first + 2):
      tokens = token_count.start(row * schedule.length)
      assert int(due(tokens)) == schedule.count(row), row
      if row:  # One token less is the row before: rows are whole.
        fewer = token_count.start(row * schedule.length - 1)
        assert int(due(fewer)) == schedule.count(row - 1)


def test_the_rate_ends_at_its_final_value_and_by_steps_it_would_not():
  """The contrast: a schedule over steps of the largest batch."""
  made = experiment('0:1 0.2:4 0.5:8', steps=60)
  config = made.optimizer
  schedule = batch_schedule.schedule_of(made)
  end = jnp.float32(schedule.row_of(60) * 16)
  rate = optimizer.shape_of_rate(config, step_lib.total_tokens(made))
  assert float(rate(end)) == np.float32(config.final)
  by_steps = optimizer.shape_of_rate(config, 60 * 8 * 16)
  assert float(by_steps(end)) > 2 * config.final


@pytest.mark.parametrize(
  'text, message',
  [
    ('0.1:2', 'the first fraction must be 0'),
    ('0:2 0.3:4 0.2:8', 'after 0.3 comes'),
    ('0:2 0.3:4 0.3:8', 'after 0.3 comes 0.3'),
    ('0:2 1:8', 'after 0 comes 1'),
    ('0:9', r'9 microbatches must lie in 1…8'),
    ('0:0', r'0 microbatches must lie in 1…8'),
    ('0:2 half:4', "'half:4'"),
    ('0:2 0.1', "'0.1'"),
    ('0:2 1/0:4', "'1/0:4'"),
    (' ', "must be ''"),
  ],
)
def test_what_is_no_schedule_is_refused(text, message):
  field = f'^optimizer.batch={text!r}: .*{message}'
  with pytest.raises(ValueError, match=field):
    batch_schedule.schedule_of(experiment(text))
