"""What a run says of its text is what its rows hold."""

import json
import re

import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.data import packing
from kaiju_jax.tasks import amounts
from kaiju_jax.tasks import registry
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import experiment as experiment_lib


def write(path, count, rng):
  lines = [
    json.dumps({'text': 'x' * int(size)}) for size in rng.integers(1, 90, count)
  ]
  path.write_text('\n'.join(lines))
  return str(path)


@pytest.mark.parametrize('seed', range(4))
def test_rows_and_epochs_are_those_that_are_read(tmp_path, seed):
  rng = np.random.default_rng(seed)
  experiment = experiment_lib.Experiment()
  experiment.data = data_config.DataConfig(
    length=int(rng.integers(8, 60)), batch=2, held_out=[0.0, 0.3][seed % 2]
  )
  experiment.loop.steps = int(rng.integers(1, 60))
  names = ['big', 'small'][: 1 + seed // 2]
  counts = dict(zip(names, (40, 7)))
  paths = {
    name: write(tmp_path / f'{name}.jsonl', counts[name], rng) for name in names
  }
  if len(names) > 1:
    experiment.data.sources = tuple(
      data_config.SourceConfig(name, path) for name, path in paths.items()
    )
  else:
    experiment.data.path = paths['big']
    names = ['']
  found = registry.task_of(experiment).load(experiment)
  rows = batch_schedule.schedule_of(experiment).rows
  length = experiment.data.length
  counted = amounts.count(found.text, found.rows, rows, length)
  assert list(json.loads(json.dumps(counted))) == names
  lines = amounts.describe(counted)
  read = [found.rows[n] for n in range(rows)]
  warned = []
  for index, (name, line) in enumerate(zip(names, lines)):
    mine = [
      one for one in read if not name or one.extras[packing.COMPONENT] == index
    ]
    text = found.text[name]
    assert line.startswith(name or 'Text')
    assert f'{text["training"]["documents"]:,} documents of ' in line
    assert ('none held out' in line) == (not experiment.data.held_out)
    assert f'reads {len(mine):,} rows of {length} tokens' in line
    assert counted[name]['rows'] == len(mine)
    assert counted[name]['row_tokens'] == len(mine) * length
    epochs = float(re.search(r'([\d.e+]+) epochs\.$', line)[1])
    tokens = sum(int((one.source >= 0).sum()) for one in mine)
    # An epoch's last row may be padded.
    whole = -(-text['training']['tokens'] // length) * length
    assert tokens / whole <= epochs * 1.01
    assert len(mine) * length / whole == pytest.approx(epochs, rel=0.01)
    warned += [name or 'the text'] * (epochs > amounts.MANY)
  assert len(lines) == len(names) + bool(warned)
  if warned:
    assert all(f'{name} ' in lines[-1] for name in warned)


def test_the_warning_begins_behind_its_threshold(tmp_path):
  (tmp_path / 'a.txt').write_text('x' * 9)  # BOS before it.
  data = data_config.DataConfig(
    path=str(tmp_path / 'a.txt'), length=10, held_out=0.0
  )
  found = registry.task_of(experiment_lib.Experiment(data=data)).load(
    experiment_lib.Experiment(data=data)
  )
  for rows, lines in (1, 1), (4, 1), (5, 2):
    counted = amounts.count(found.text, found.rows, rows, 10)
    assert counted['']['epochs'] == rows
    described = amounts.describe(counted)
    assert len(described) == lines
    assert f'{rows} rows of 10 tokens: {rows} epochs' in described[0]
