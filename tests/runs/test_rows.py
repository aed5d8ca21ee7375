"""The rows of a step are made again, and are those that it read."""

import json

import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.data import packing
from kaiju_jax.runs import rows
from kaiju_jax.runs import train
from kaiju_jax.training import loop
from kaiju_jax.training import workdir
from tests import toys

STEPS = 11


def _words(number, count):
  """Returns a text of which every place says where it is."""
  return ' '.join(f'{number}:{place}' for place in range(count))


def _sources(folder):
  made = []
  for name, sizes in ('big', (90, 7, 30, 55)), ('small', (11, 40)):
    (folder / name).mkdir()
    for number, size in enumerate(sizes):
      (folder / name / f'{number}.txt').write_text(_words(number, size))
    weight = 0.7 if name == 'big' else 0.3
    made.append(
      data_config.SourceConfig(name, str(folder / name), weight=weight)
    )
  return tuple(made)


def _conversations(file):
  lines = []
  for number in range(9):
    said = [
      {'role': role, 'content': f'{role} {number}'}
      for role in ('user', 'assistant')
    ]
    lines.append(json.dumps({'messages': said * (1 + number % 2)}))
  file.write_text('\n'.join(lines))
  return file


def _experiment(kind, folder):
  if kind == 'conversations':
    made = toys.tiny_chat_experiment(_conversations(folder / 'c.jsonl'), 64)
  else:
    made = toys.tiny_experiment('')
    made.data.sources = _sources(folder)
  made.data.held_out = 0.0
  made.data.batch, made.data.microbatches, made.data.mix_block = 2, 3, 8
  made.loop.steps = STEPS
  if kind == 'alone':
    made.data.path, made.data.sources = made.data.sources[0].path, ()
  if kind == 'growing':
    made.optimizer.batch = '0:1 0.2:2 0.6:3'
    made.loop.tokens = 23 * 2 * made.data.length
    made.loop.steps = 1000
  return made


@pytest.fixture
def run(tmp_path, monkeypatch):
  """Reads a run's batches, as its steps would; returns them."""

  def start(made, folder):
    read = []

    def take(experiment, path, *, batches, schedule, **_):
      with workdir.open_workdir(path, experiment) as opened:
        for step in range(1, schedule.steps + 1):
          read.append(next(batches))
          position = opened / 'checkpoints' / str(step) / 'data'
          position.mkdir(parents=True)
          text = json.dumps(batches.get_state())
          (position / 'metadata').write_text(text)

    monkeypatch.setattr(loop, 'train', take)
    train.train(made, folder)
    return read

  return start


@pytest.mark.parametrize('kind', ['alone', 'mixed', 'growing', 'conversations'])
def test_they_are_those_of_the_batch(tmp_path, run, kind):
  made, folder = _experiment(kind, tmp_path), tmp_path / 'run'
  batches = run(made, folder)
  counts, numbers, names = [], [], set()
  # Their epochs end within the run, several times.
  for step, batch in enumerate(batches, 1):
    found = rows.read(folder, step)
    assert found.is_checked
    counts.append(len(found.rows))
    numbers += [one.number for one in found.rows]
    places = [(n // 2, n % 2) for n in range(len(found.rows))]
    for (microbatch, place), one in zip(places, found.rows, strict=True):
      assert one.microbatch == microbatch
      for name in packing.Batch._fields[:-1]:
        wanted = np.asarray(getattr(batch, name))[microbatch, place]
        own = getattr(one.row, name.rpartition('_')[0])
        np.testing.assert_array_equal(own, wanted)
      held = sum(origin.end - origin.first for origin in one.origins)
      assert held == (one.row.source >= 0).sum()
      names.add((one.source, one.origins[0].name.rpartition('/')[2]))
    # The microbatches beyond those of the step are padding.
    rest = np.asarray(batch.source_BL).reshape(6, -1)[len(found.rows) :]
    assert (rest < 0).all()
  assert numbers == list(range(sum(counts)))
  if kind == 'growing':
    assert sum(counts) == 46 and set(counts) == {2, 4, 6}
  else:
    assert counts == [6] * STEPS
  if kind in ('mixed', 'growing'):
    assert {name for name, _ in names} == {'big', 'small'}
  for step in (0, len(batches) + 1):
    with pytest.raises(ValueError, match=f'step {step}: '):
      rows.read(folder, step)


def test_lines_name_documents_and_the_tokens_that_are_there(tmp_path, run):
  folder = tmp_path / 'run'
  run(_experiment('mixed', tmp_path), folder)
  texts = {
    (file.parent.name, file.name): '\0' + file.read_text()  # BOS is token 0.
    for file in tmp_path.glob('*/*.txt')
  }
  found = rows.read(folder, 3)
  for one in found.rows:
    begin = 0
    for origin in one.origins:
      key = one.source, origin.name.rpartition('/')[2]
      wanted = texts[key][origin.first : origin.end]
      end = begin + len(wanted)
      own = bytes(one.row.tokens[begin:end].tolist()).decode()
      assert own.lstrip('\0') == wanted.lstrip('\0')
      begin = end
  lines = rows.describe(found, 10)
  heads = [line for line in lines if not line.startswith('  ')]
  assert len(heads) == 6 and len(lines) == 6 + sum(
    len(one.origins) for one in found.rows
  )
  assert all(
    len(line.split(': ', 1)[1]) <= 13 for line in set(lines) - {*heads}
  )


def test_a_branch_counts_from_where_it_began(tmp_path, run):
  made, folder = _experiment('growing', tmp_path), tmp_path / 'run'
  run(made, folder)
  made.loop.branch = f'{folder}@4'
  made.optimizer.batch = ''
  with workdir.open_workdir(tmp_path / 'branch', made):
    pass
  before, found = rows.read(folder, 4), rows.read(tmp_path / 'branch', 5)
  first = before.rows[-1].number + 1
  assert [one.number for one in found.rows] == [*range(first, first + 6)]
  assert not found.is_checked
  with pytest.raises(ValueError, match='has the steps 5 to'):
    rows.read(tmp_path / 'branch', 4)


def test_another_text_is_refused(tmp_path, run):
  folder = tmp_path / 'run'
  run(_experiment('mixed', tmp_path), folder)
  file = tmp_path / 'small' / '1.txt'
  file.write_text(file.read_text().replace('1:3', '1:4'))
  with pytest.raises(ValueError, match="'small'"):
    rows.read(folder, 3)
  (folder / 'checkpoints').rename(tmp_path / 'gone')
  assert not rows.read(folder, 3).is_checked


def test_rows_of_no_documents_have_numbers(tmp_path, run):
  made = toys.tiny_experiment('')
  made.data.task, made.data.path = 'needle', ''
  made.data.length, made.model.max_length = 256, 512
  (batch, *_) = run(made, tmp_path / 'run')
  found = rows.read(tmp_path / 'run', 1)
  tokens = np.stack([one.row.tokens for one in found.rows])
  np.testing.assert_array_equal(tokens, np.asarray(batch.tokens_BL)[0])
  assert found.rows[0].origins[0].name == 'document 0'
  assert rows.describe(found, 20)
