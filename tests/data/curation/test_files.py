"""From paths to near-duplicates, and from an evaluation set to its leaks."""

import json
import re

import numpy as np
import pytest

from kaiju_jax.data import documents
from kaiju_jax.data.curation import duplicates
from kaiju_jax.data.curation import leaks
from tests.data import planted


def text(seed, words=120):
  share = planted.distributions(1)[0]
  return planted.texts(share, 1, words, np.random.default_rng(seed))[0]


def test_the_first_of_each_group_is_kept_in_the_order_of_the_paths(tmp_path):
  for folder, files in {
    'trusted': {'a.txt': text(0), 'b.txt': text(1)},
    'web': {
      'a.txt': text(2),
      'b.txt': planted.changed(text(0), [60]),
      'c.txt': text(2).upper(),
    },
  }.items():
    (tmp_path / folder).mkdir()
    for name, content in files.items():
      (tmp_path / folder / name).write_text(content)
  paths = [str(tmp_path / 'trusted'), str(tmp_path / 'web')]
  result = duplicates.find_in_files(paths)
  duplicates.write(result, str(tmp_path / 'out'))
  kept = list(documents.read(str(tmp_path / 'out/kept.jsonl')))
  assert [one.segments for one in kept] == [(text(0),), (text(1),), (text(2),)]
  first, second = json.loads((tmp_path / 'out/groups.json').read_text())
  assert [(one['path'], one['name']) for one in first] == [
    (paths[0], 'a.txt'),
    (paths[1], 'b.txt'),
  ]
  # One word of 120 is in 5 of 116 runs.
  assert [one['likeness'] for one in first] == [1, round(111 / 121, 4)]
  assert [one['name'] for one in second] == ['a.txt', 'c.txt']


def test_leaked_items_are_named_and_the_others_are_written(tmp_path):
  items = [text(0), text(1), text(2)]
  lines = [json.dumps({'text': one}) for one in items]
  (tmp_path / 'exam.jsonl').write_text('\n'.join(lines))
  (tmp_path / 'web').mkdir()
  (tmp_path / 'web/page.txt').write_text(f'{text(3)} {text(1)} {text(4)}')
  for number in range(10):
    (tmp_path / f'web/copy{number}.txt').write_text(text(2))
  exam, web = str(tmp_path / 'exam.jsonl'), str(tmp_path / 'web')
  leaks.write(leaks.find_in_files(exam, [web]), str(tmp_path / 'out'))
  assert json.loads((tmp_path / 'out/leaks.json').read_text()) == {
    'leaked': [
      {
        'item': 'exam.jsonl#2',
        'share': 1.0,
        'training_path': web,
        'training_document': 'page.txt',
      }
    ],
    'common': ['exam.jsonl#3'],
  }
  clean = list(documents.read(str(tmp_path / 'out/clean.jsonl')))
  assert [one.segments for one in clean] == [(text(0),)]


@pytest.mark.parametrize(
  'find, arguments, message',
  [
    (duplicates, (['{}/a.txt', '{}'],), 'a.txt is also in --documents='),
    (leaks, ('{}/a.txt', ['{}']), 'a.txt is also in --training='),
    (duplicates, (['{}/a.txt'], 1.5), '--least=1.5: must'),
    (duplicates, (['{}/a.txt'], 0), '--least=0: must'),
    (duplicates, ([],), '--documents: is missing'),
    (leaks, ('{}/a.txt', []), '--training: is missing'),
    (leaks, ('{}/empty.txt', ['{}/a.txt']), 'the files hold no text'),
  ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, find, arguments, message):
  (tmp_path / 'a.txt').write_text('a')
  (tmp_path / 'empty.txt').write_text('')

  def placed(one):
    if isinstance(one, list):
      return [placed(path) for path in one]
    return one.format(tmp_path) if isinstance(one, str) else one

  with pytest.raises(ValueError, match=re.escape(message)):
    find.find_in_files(*map(placed, arguments))
