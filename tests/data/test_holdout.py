"""Every text is split into two parts, neither empty, that later files keep."""

import hashlib
import json
import random

import pytest

from kaiju_jax.data import conversations
from kaiju_jax.data import holdout

WORDS = ['one', 'two', 'three', 'four', 'five', 'six']


def is_below(name, fraction):
  """Says again what decides, apart from the code."""
  digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'big') / 2**64 < fraction


def draw_text(rng, size):
  """Returns some words, in lines or in one."""
  between = rng.choice(['\n', ' ', ' ' * 20 + '\n'])
  return between.join(rng.choice(WORDS) for _ in range(size // 5))


def texts_of(part):
  """Returns {file: text} of a part, its documents joined."""
  found = {}
  for one in part:
    file = one.name.partition('#')[0]
    found[file] = found.get(file, '') + one.segments[0]
  return found


@pytest.mark.parametrize('fraction', [0.01, 0.05, 0.3, 0.9])
def test_any_folder_has_text_to_train_on_and_to_evaluate(fraction, tmp_path):
  rng = random.Random(fraction)
  ways = set()
  for turn in range(60):
    folder = tmp_path / f'{turn}'
    folder.mkdir()
    count = rng.choice([1, 2, 3, 5, 10, 40])
    sizes = rng.choice([[10, 200], [2000, 9000], [10, 5000, 200_000]])
    given = {
      f'{rng.randrange(10**6)}.txt': draw_text(rng, rng.choice(sizes))
      for _ in range(count)
    }
    for name, text in given.items():
      (folder / name).write_text(text)
    training, held_out = holdout.read(str(folder), fraction)
    assert training and held_out
    parts = texts_of(training), texts_of(held_out)
    names = {name for name in given if is_below(name, fraction)}
    if len(given) > 1 and 0 < len(names) < len(given):
      ways.add('by name')  # As earlier versions split it, to the document.
      assert [one.name for one in held_out] == sorted(names)
      assert parts[0].keys() == given.keys() - names
    elif any(one.name.endswith('#1') for one in held_out) and len(given) > 1:
      ways.add('cut')
      for name, end in parts[1].items():
        least = round(fraction * len(given[name]))
        assert least <= len(end) <= max(1, 2 * least)
        whole_line = parts[0][name].endswith('\n')
        assert whole_line or len(given[name]) >= 1024
    elif len(given) > 1:
      ways.add('one moves')
      assert min(len(training), len(held_out)) == 1
    for name, text in given.items():
      if len(given) > 1:
        assert parts[0].get(name, '') + parts[1].get(name, '') == text
    total = sum(len(x) for part in parts for x in part.values())
    assert total == sum(map(len, given.values()))
  assert ways == {'by name', 'cut', 'one moves'}


def test_a_further_file_moves_no_text(tmp_path):
  """Nor does it where texts are cut, unless it is held out by its name."""
  rng = random.Random(3)
  for turn in range(40):
    folder = tmp_path / f'{turn}'
    folder.mkdir()
    names = [f'{turn}-{n}.txt' for n in range(rng.choice([3, 8, 20]))]
    added = []
    for name in names:
      before = holdout.read(str(folder), 0.1) if len(added) > 1 else ([], [])
      (folder / name).write_text(draw_text(rng, 3000))
      added.append(is_below(name, 0.1))
      if added[-1] and sum(added) == 1:
        continue  # From here on names decide.
      after = holdout.read(str(folder), 0.1)
      for one, other in zip(before, after):
        assert set(one) <= set(other)


def test_what_is_added_to_short_texts_puts_none_of_them_aside(tmp_path):
  """At most the one that was held out is trained on from then on."""
  held = []
  for number in range(30):
    (tmp_path / f'{number}.txt').write_text('a text')
    if number:
      training, held_out = holdout.read(str(tmp_path), 1e-9)
      (one,) = held_out
      assert len(training) == number
      assert not held or one.name in (held[-1], f'{number}.txt')
      held.append(one.name)
  assert 1 < len(set(held)) < 10


@pytest.mark.parametrize(
  ('text', 'fraction', 'expected'),
  [
    ('short', 0.01, ('shor', 't')),
    ('short', 0.9999999, ('s', 'hort')),
    ('a\nb\nc\nd\n', 0.25, ('a\nb\nc\n', 'd\n')),
    ('a\nb\nc\nd', 0.2, ('a\nb\nc\n', 'd')),
    ('xy', 0.5, ('x', 'y')),
    ('one\n' * 400, 0.05, ('one\n' * 380, 'one\n' * 20)),
  ],
)
def test_a_single_file_is_cut(text, fraction, expected, tmp_path):
  file = tmp_path / 'seven.txt'  # Its name puts no piece of it aside.
  file.write_text(text)
  found = holdout.read(str(file), fraction)
  assert tuple(''.join(x.segments[0] for x in one) for one in found) == expected
  assert holdout.read(str(file), 0.0) == ([('seven.txt', (text,), (-1,))], [])


def test_trees_stay_whole(tmp_path):
  tree = {
    'segments': [{'text': 'a' * 2000, 'parent': -1}, {'text': 'b', 'parent': 0}]
  }
  file = tmp_path / 'trees.jsonl'
  file.write_text(json.dumps(tree))
  with pytest.raises(ValueError, match='at least two documents in x='):
    holdout.read(str(file), 1e-9, 'x')
  file.write_text(f'{json.dumps(tree)}\n' * 3)
  training, (one,) = holdout.read(str(file), 1e-9)
  assert len(training) == 2 and len(one.segments) == 2
  file.write_text(f'{json.dumps(tree)}\n{json.dumps({"text": "c" * 2000})}\n')
  training, (one,) = holdout.read(str(file), 1e-9)
  assert [x.name for x in training] == ['trees.jsonl#1', 'trees.jsonl#2#0']
  assert one.segments == ('c',)


def test_conversations_are_split_whole(tmp_path):
  file = tmp_path / 'chats.jsonl'
  for count in 2, 5, 11:
    chat = {'messages': [{'role': 'assistant', 'content': 'Hi'}]}
    file.write_text(f'{json.dumps(chat)}\n' * count)
    found = list(conversations.read(str(file)))
    for fraction in 1e-9, 0.05, 1 - 1e-9:
      training, held_out = holdout.split(found, fraction, 'chats')
      assert training and held_out
      assert sorted(training + held_out) == sorted(found)
  with pytest.raises(ValueError, match=r'0\.1: needs at least two chats'):
    holdout.split(found[:1], 0.1, 'chats')
  assert holdout.split([], 0.1, 'chats') == ([], [])
