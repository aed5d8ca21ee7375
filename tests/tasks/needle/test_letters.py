"""Rows of letters: each capital follows from the text before, or is new."""

import json

import numpy as np

from kaiju_jax.data import config as data_config
from kaiju_jax.data import tokenizer
from kaiju_jax.data.store import corpora
from kaiju_jax.tasks.needle import letters


def pairs(tokens):
  """Returns the (place, key, value) of each needle of a text."""
  tokens = np.asarray(tokens)
  places = np.flatnonzero(np.isin(tokens, letters.KEYS))
  return [(int(p), int(tokens[p]), int(tokens[p + 1])) for p in places]


def test_a_document_never_contradicts_itself_and_repeats_its_needles():
  sizes = set()
  for seed in range(20):
    drawn = letters.document(np.random.default_rng(seed), 127)
    tokens = tokenizer.Bytes().encode(drawn)
    found = pairs(tokens)
    assert len(tokens) == 127
    assert {value for _, _, value in found} <= set(letters.VALUES.tolist())
    of_key = {key: value for _, key, value in found}
    assert all(of_key[key] == value for _, key, value in found)
    assert len(set(of_key.values())) == len(of_key)
    assert len(found) >= 2 * len(of_key)
    sizes.add(len(of_key))
  assert min(sizes) >= 2 and max(sizes) == 8
  short = letters.document(np.random.default_rng(0), 16)
  assert len({key for _, key, _ in pairs(tokenizer.Bytes().encode(short))}) < 4


def test_an_answer_lies_at_its_distance_and_nowhere_else():
  task = letters.Letters()
  drawn = task.questions(np.random.default_rng(0), 50, 64, 17, 7)
  for tokens, (answer,) in zip(drawn.tokens_BL, drawn.answers_BA):
    found = pairs(tokens[:-1])
    assert len(found) == 8 and len({key for _, key, _ in found}) == 8
    (place,) = (p for p, key, _ in found if key == tokens[-1])
    assert 63 - (place + 1) == 17
    assert tokens[place + 1] == answer
    assert sum(value == answer for _, _, value in found) == 1
  assert task.fits(64, 7) and not task.fits(64, 8) and not task.fits(8, 7)


def test_a_corpus_is_the_same_text_again(tmp_path):
  for name in 'a', 'b':
    letters.write(tmp_path / name / 'x.jsonl', 40, 32)
  first, second = ((tmp_path / n / 'x.jsonl').read_text() for n in 'ab')
  assert first == second
  lines = [json.loads(line)['text'] for line in first.splitlines()]
  sizes = {len(line) for line in lines}
  assert len(set(lines)) == 40 and len(sizes) > 8
  assert min(sizes) >= 16 and max(sizes) <= 31
  data = data_config.DataConfig(path=str(tmp_path / 'a'), held_out=0.2)
  training, unseen = corpora.load(data)
  found = [*np.diff(training.begins), *np.diff(unseen.begins)]
  assert sorted(found) == sorted(1 + len(line) for line in lines)
