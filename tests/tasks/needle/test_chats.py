"""Conversations ask for the one sentence that their passage has not."""

import json

import numpy as np
import pytest

from kaiju_jax.tasks.needle import chats
from tests.experiments import forked

RNG = np.random.default_rng(3)
TEXT = ' '.join(map(str, RNG.integers(10**6, 10**7, 4000)))
SIZE = 800


def test_the_reply_stands_once_in_a_passage_of_the_text():
  depths, kinds, asked = [], set(), set()
  for one in chats.draw(TEXT, 200, SIZE):
    user, assistant = one['messages']
    assert (user['role'], assistant['role']) == ('user', 'assistant')
    sentence = assistant['content']
    passage, question = user['content'].split('\n\n')
    assert passage.count(sentence) == 1 and question.endswith('?')
    before, after = passage.split(sentence)
    # A space beside it goes with it, and nothing else is changed.
    whole = before + after.removeprefix(' ') if after else before[:-1]
    assert len(whole) == SIZE and whole in TEXT
    depths.append(len(before) / SIZE)
    kinds.add(sentence.split()[1])
    asked.add(question)
    # Names of a question are the sentence's.
    names = [x for x in question.strip('?').split()[1:] if x[0].isupper()]
    assert all(name in sentence for name in names)
  assert len(kinds) == 7 and len(asked) > 100
  assert np.mean(depths) == pytest.approx(0.5, abs=0.06)
  assert min(depths) < 0.02 and max(depths) > 0.98


def test_a_conversation_is_its_seeds_and_its_numbers():
  first = [*chats.draw(TEXT, 4, SIZE)]
  assert first[:2] == [*chats.draw(TEXT, 2, SIZE)]
  others = [*chats.draw(TEXT, 4, SIZE, seed=1)]
  said = [one['messages'][0]['content'] for one in [*first, *others]]
  assert len(set(said)) == 8


def test_a_text_of_one_passage_suffices():
  [one] = chats.draw(TEXT[:SIZE], 1, SIZE)
  assert len(one['messages'][0]['content']) > SIZE
  with pytest.raises(ValueError, match=r'has 799 characters: .* size=800'):
    next(chats.draw(TEXT[: SIZE - 1], 1, SIZE))


def test_the_command_reads_all_files_of_a_text(tmp_path):
  folder = tmp_path / 'texts'
  folder.mkdir()
  for n in range(2):
    (folder / f'{n}.txt').write_text(TEXT[400 * n : 400 * (n + 1)])
  out = tmp_path / 'asked.jsonl'
  words = f'experiments.texts --of=questions --text={folder} --size=801'
  command = [*words.split(), '--count=3', '--seed=5', f'--out={out}']
  done, again = forked.run([command, command])
  assert done.returncode == 0, done.stderr
  lines = [json.loads(line) for line in out.read_text().splitlines()]
  whole = f'{TEXT[:400]}\n{TEXT[400:800]}'
  assert lines == [*chats.draw(whole, 3, 801, seed=5)]
  assert again.returncode == 1 and str(out) in again.stderr
