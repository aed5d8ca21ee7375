"""The commands that prepare text, end to end."""

import json

import numpy as np
import pytest

from tests.data import planted
from tests.experiments import forked


def write(path, texts):
  path.write_text('\n'.join(json.dumps({'text': text}) for text in texts))


@pytest.fixture(scope='module')
def done(tmp_path_factory):
  """The commands' folder and their outcomes, in order."""
  folder = tmp_path_factory.mktemp('texts')
  rng = np.random.default_rng(0)
  like, other = planted.distributions(2, items=planted.PHRASES)
  write(folder / 'target.jsonl', planted.texts(like, 30, 50, rng))
  same = planted.texts(like, 30, 50, rng)
  write(folder / 'same.jsonl', [*same, same[0]])
  write(folder / 'other.jsonl', [*planted.texts(other, 30, 50, rng), same[1]])
  target = f'--target={folder}/target.jsonl'
  mix = (
    f'mix {target} --resamples=4 --out={folder}/mix'
    f' --sources=same={folder}/same.jsonl,other={folder}/other.jsonl'
  )
  commands = [
    mix,
    mix,
    f'select {target} --source={folder}/same.jsonl --count=5'
    f' --out={folder}/selected',
    f'overlap --documents={folder}/same.jsonl --out={folder}/unique',
    f'overlap --evaluation={folder}/same.jsonl'
    f' --training={folder}/other.jsonl --out={folder}/leaks',
  ]
  words = [f'experiments.{command}'.split() for command in commands]
  return folder, forked.run(words)


@pytest.mark.slow
def test_the_commands_write_their_folders_once(done):
  folder, (mix, again, select, duplicates, leaks) = done
  for one in mix, select, duplicates, leaks:
    assert one.returncode == 0, one.stderr
    assert not one.jax
  weights = {
    one['name']: one['weight']
    for one in json.loads((folder / 'mix/mix.json').read_text())['sources']
  }
  assert weights['same'] > 0.8
  assert '5 of 31 documents by importance' in select.stdout
  assert '30 of 31 documents are kept; 1 are near-dup' in duplicates.stdout
  assert '1 of 31 items are leaked, 0 have common runs' in leaks.stdout
  assert again.returncode == 1
  assert 'exists; must be the name of a new folder' in again.stderr
