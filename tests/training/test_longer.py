"""Which runs may become longer: those whose steps so far stay as they were."""

import random
import re

import numpy as np
import pytest

from kaiju_jax.training import batch_schedule
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import longer
from kaiju_jax.training import optimizer as optimizer_lib
from kaiju_jax.training import workdir

LENGTH, BATCH = 16, 2


def run(steps=10, tokens=0, **optimizer):
  made = experiment_lib.Experiment()
  made.data.length, made.data.batch = LENGTH, BATCH
  made.data.microbatches = optimizer.pop('microbatches', 1)
  made.optimizer = training_config.OptimizerConfig(**optimizer)
  made.loop.steps, made.loop.tokens = steps, tokens
  return made


def test_the_share_of_the_peak_is_the_optimizers():
  rng = random.Random(0)
  for _ in range(60):
    config = training_config.OptimizerConfig(
      schedule=rng.choice(['cosine', 'wsd', 'constant']),
      warmup=rng.choice([0.0, 0.02, 0.3]),
      decay=rng.choice([0.0, 0.2, 0.7]),
      final=rng.choice([0.0, 0.05, 1.0]),
    )
    total = rng.randrange(100, 100_000)
    shape = optimizer_lib.shape_of_rate(config, total)
    for tokens in (0, 1, total // 3, total - 1, total, 2 * total):
      found = longer.share_of_peak(config, total, tokens)
      expected = float(shape(np.float32(tokens)))
      assert found == pytest.approx(expected, abs=2e-4), (config, tokens)


@pytest.mark.parametrize(
  'held, wanted, step, why',
  [
    # A constant rate goes on behind both warm-ups.
    (dict(warmup=0.0), dict(steps=11), 10, ''),
    (dict(warmup=0.1), dict(steps=20), 10, ''),
    (dict(warmup=0.1), dict(steps=100), 10, ''),
    (dict(warmup=0.1), dict(steps=101), 10, 'is 1 of its peak, and 0.99 in'),
    (dict(warmup=0.5), dict(steps=20), 4, 'is 0.8 of its peak, and 0.4 in'),
    # WSD until its decay begins.
    (dict(schedule='wsd'), dict(steps=20), 8, ''),
    (dict(schedule='wsd'), dict(steps=20), 9, 'is 0.525 of its peak, and 1'),
    (dict(schedule='wsd'), dict(steps=20), 10, 'is 0.05 of its peak, and 1'),
    (dict(schedule='wsd', decay=0.0), dict(steps=20), 10, ''),
    # A cosine falls over one length alone, unless nothing was trained.
    (dict(schedule='cosine'), dict(steps=20), 1, "schedule='cosine': after"),
    (dict(schedule='cosine'), dict(steps=20), 0, ''),
    (dict(schedule='cosine', final=1.0), dict(steps=20), 5, "='cosine'"),
    # Either way of saying the length.
    (dict(warmup=0.0), dict(tokens=20 * 32), 10, ''),
    (dict(steps=1, tokens=320, warmup=0.0), dict(tokens=640), 10, ''),
    (dict(warmup=0.0), dict(steps=7, tokens=10 * 32), 10, ''),
    # A batch that grows over the run grows elsewhere in a longer one.
    (
      dict(warmup=0.0, batch='0:1 0.5:2', microbatches=2),
      dict(steps=20),
      9,
      "optimizer.batch='0:1 0.5:2': step 9 of the longer run begins at row",
    ),
    (
      dict(warmup=0.0, batch='0:1 0.5:2', microbatches=2),
      dict(steps=20),
      2,
      '',
    ),
    # The last step of a number of tokens may be smaller than others.
    (
      dict(tokens=320 + 32, warmup=0.0, microbatches=2),
      dict(tokens=640),
      6,
      'optimizer.batch',
    ),
    (dict(warmup=0.0), dict(steps=9), 8, 'longer, not shorter'),
  ],
)
def test_a_run_goes_on_where_its_steps_stay(held, wanted, step, why):
  held = run(**{'schedule': 'constant', **held})
  longer_one = run()
  longer_one.optimizer, longer_one.data = held.optimizer, held.data
  longer_one.loop.steps = wanted.get('steps', held.loop.steps)
  longer_one.loop.tokens = wanted.get('tokens', 0)
  found = longer.Extension(held, longer_one).find_obstacle(step)
  assert re.search(why, found) if why else found == ''


def test_what_may_go_on_has_taken_the_steps_of_the_longer_run():
  """Rows of every step so far, and rates from here on, as if begun so long."""
  rng = random.Random(1)
  allowed = 0
  for _ in range(2000):
    held = run(
      rng.randrange(2, 20),
      rng.choice([0, 0, 32 * rng.randrange(2, 40)]),
      schedule=rng.choice(['constant', 'wsd', 'cosine']),
      warmup=rng.choice([0.0, 0.1, 0.3]),
      decay=rng.choice([0.0, 0.3]),
      microbatches=4,
      batch=rng.choice(['', '0:1 0.5:4', '0:2']),
    )
    wanted = run(rng.randrange(2, 60), rng.choice([0, 32 * 90]))
    wanted.optimizer, wanted.data = held.optimizer, held.data
    before, after = map(batch_schedule.schedule_of, (held, wanted))
    step = rng.randrange(1, before.steps + 1)
    if after.rows == before.rows:
      continue
    if longer.Extension(held, wanted).find_obstacle(step):
      continue
    allowed += 1
    assert after.rows > before.rows
    row = before.row_of(step)
    assert row == after.row_of(step) < after.rows
    for number in range(step, after.steps + 1):
      tokens = after.row_of(number) * LENGTH
      share = longer.share_of_peak(held.optimizer, after.tokens, tokens)
      decays = tokens > after.tokens * (1 - held.optimizer.decay)
      assert share == 1 or (held.optimizer.schedule == 'wsd' and decays)
  assert allowed > 50


def test_rows_that_a_length_spreads_are_no_start(tmp_path):
  held, wanted = run(warmup=0.0, schedule='constant'), run(20, warmup=0.0)
  wanted.optimizer = held.optimizer
  held.data.task = wanted.data.task = 'needle'
  extension = longer.Extension(held, wanted, common_rows=lambda _: 8)
  why = extension.find_obstacle(5)
  assert "data.task='needle'" in why and 'from row 8 on, and step 5' in why
  assert not extension.find_obstacle(4)
  with workdir.open_workdir(tmp_path / 'run', held):
    (tmp_path / 'run' / 'checkpoints' / '5').mkdir(parents=True)
  with pytest.raises(ValueError, match='another experiment') as error:
    workdir.check(tmp_path / 'run', wanted)  # What asks nothing else.
  assert 'It cannot be extended' not in str(error.value)
  with pytest.raises(ValueError, match='cannot be extended: data'):
    workdir.check(tmp_path / 'run', wanted, lambda _: 0)
  workdir.check(tmp_path / 'run', wanted, longer.all_rows)
  wanted.optimizer = training_config.OptimizerConfig(b1=0.8)
  with pytest.raises(ValueError, match='b1: 0') as error:
    workdir.check(tmp_path / 'run', wanted, longer.all_rows)
  assert 'It cannot be extended' not in str(error.value)


@pytest.mark.parametrize(
  'held, steps, said',
  [
    (dict(schedule='cosine'), (4, 8), 'branch=P@8'),
    (dict(schedule='wsd'), (4, 8, 10), 'branch=P@8'),
    (dict(schedule='wsd'), (9, 10), 'branch=P@10'),
  ],
)
def test_the_branch_that_is_offered_is_the_smoothest(held, steps, said):
  held = run(**held)
  wanted = run(20)
  wanted.optimizer = held.optimizer
  advice = longer.Extension(held, wanted).advise('P', 'F', steps)
  assert advice.endswith(f'--workdir=F --config.loop.{said}')
  assert '--workdir=F\n' in advice
  held.lora.rank = 2
  advice = longer.Extension(held, wanted).advise('P', 'F', steps)
  assert 'branch' not in advice and advice.endswith('config.begin_with=P')


def test_a_branch_counts_its_rows_from_where_it_began(tmp_path):
  """Its batch is larger than before: fewer rows than its steps would take."""
  folder = tmp_path / 'base' / 'checkpoints' / '4' / 'data'
  folder.mkdir(parents=True)
  (folder / 'metadata').write_text('{"row": 8}')
  held, wanted = run(schedule='wsd'), run(20)
  held.data.batch, wanted.data = 4, held.data
  held.loop.branch = wanted.loop.branch = f'{tmp_path}/base@4'
  wanted.optimizer = held.optimizer
  place = tmp_path / 'run'
  with workdir.open_workdir(place, held):
    workdir.check(place, wanted, longer.all_rows)
    for step in 9, 10, 11:  # Rows 28, 32 and 36 of 40; the decay begins at 32.
      (place / 'checkpoints' / f'{step}').mkdir(parents=True)
      if step < 11:
        workdir.check(place, wanted, longer.all_rows)
        continue
      with pytest.raises(ValueError, match='after step 11') as error:
        workdir.check(place, wanted, longer.all_rows)
      assert f'its peak: --workdir={place}-2' in str(error.value)
      assert str(error.value).endswith(f'branch={place}@10')
    wanted.loop.steps = 9
    with pytest.raises(ValueError, match='longer, not shorter'):
      workdir.check(place, wanted, longer.all_rows)
