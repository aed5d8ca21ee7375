"""Near-duplicates: planted copies, near misses, and an oracle of all pairs."""

import itertools

import numpy as np
import pytest

from kaiju_jax.data.curation import duplicates
from tests.data import planted


def drawn(count, seed):
  """Returns (texts, {part of the words changed: pairs of text and copy}).

  A third of the copies each have none, 1 % and 8 % of their words changed.
  """
  rng = np.random.default_rng(seed)
  share = planted.distributions(1)[0]
  texts = [
    planted.texts(share, 1, int(size), rng)[0]
    for size in rng.integers(200, 600, count)
  ]
  pairs = {part: [] for part in (0.0, 0.01, 0.08)}
  for number in range(count):
    part = list(pairs)[number % 3]
    words = len(texts[number].split(' '))
    which = rng.permutation(words)[: round(part * words)]
    pairs[part].append((number, len(texts)))
    texts.append(planted.changed(texts[number], which))
  return texts, pairs


def joined(found, pairs):
  """Returns the part of the pairs that are in one group."""
  return np.mean([found.group[one] == found.group[two] for one, two in pairs])


@pytest.mark.parametrize(
  'count, seed', [(240, 0), pytest.param(2000, 1, marks=pytest.mark.slow)]
)
def test_copies_are_found_and_near_misses_are_not(count, seed):
  texts, pairs = drawn(count, seed)
  found = duplicates.find(texts)
  recall, edited, false = (joined(found, each) for each in pairs.values())
  assert recall >= 0.99 and edited >= 0.95 and false <= 0.001
  # Contrasts: pairs of a band that nobody compared, and one band of all rows.
  assert joined(duplicates.find(texts, least=0.0), pairs[0.08]) > 0.001
  strict = duplicates.find(texts, bands=1, rows=128)
  assert joined(strict, pairs[0.01]) < 0.95
  # Nothing else was joined: every group holds one original and its copy.
  assert max(map(len, found.groups())) == 2
  kept = found.list_kept()
  assert len(kept) == 2 * count - len(found.groups())
  assert np.all(kept[:count] == np.arange(count)), 'the first is kept'
  assert np.all(found.likeness[found.group != np.arange(2 * count)] >= 0.8)
  assert np.all(found.likeness[kept] == 1)


def test_groups_are_those_of_all_pairs():
  """An oracle of Python's sets; chains join what is not alike itself."""
  rng = np.random.default_rng(0)
  text = ' '.join(f'w{number}' for number in range(100))
  texts = [text]
  for _ in range(40):
    source = texts[rng.integers(len(texts))]
    which = rng.permutation(100)[: rng.integers(1, 4)]
    texts.append(planted.changed(source, which))
  sets = [
    set(zip(*(text.split(' ')[skip:] for skip in range(5)))) for text in texts
  ]
  group = list(range(len(texts)))
  for one, two in itertools.combinations(range(len(texts)), 2):
    if len(sets[one] & sets[two]) / len(sets[one] | sets[two]) >= 0.8:
      old, new = sorted((group[one], group[two]), reverse=True)
      group = [new if each == old else each for each in group]
  # All pairs of a band of one row: next to nothing escapes it.
  found = duplicates.find(texts, bands=128, rows=1)
  assert 1 < len(set(group)) < len(texts)
  assert found.group.tolist() == group


def test_short_texts_are_duplicates_of_their_own_copies_only():
  found = duplicates.find(['a b', 'A, b!', 'a b c', '??', '?!', '??', 'b a'])
  assert found.group.tolist() == [0, 0, 2, 3, 4, 3, 6]
  assert [one.tolist() for one in found.groups()] == [[0, 1], [3, 5]]


def test_many_copies_cost_a_comparison_each(monkeypatch):
  count = 0

  def counted(one, other):
    nonlocal count
    count += 1
    return float(np.array_equal(one, other))

  monkeypatch.setattr(duplicates, 'jaccard', counted)
  assert duplicates.find(['a b c d e f'] * 200).list_kept().tolist() == [0]
  # To join 199 copies, and to say how alike they are.
  assert count <= 2 * 200


def test_a_likeness_of_exactly_four_fifths_is_a_duplicate():
  words = [f'w{n}' for n in range(13)]
  # Nine runs of five words each, of which eight are shared: 8 of 10.
  text, like = ' '.join(words), ' '.join([*words[:12], 'other'])
  # Eight each, of which seven are shared: 7 of 9.
  short, unlike = ' '.join(words[:12]), ' '.join([*words[:11], 'other'])
  found = duplicates.find([text, like], bands=128, rows=1)
  assert found.likeness.tolist() == [1, 0.8]
  assert found.group.tolist() == [0, 0]
  found = duplicates.find([short, unlike], bands=128, rows=1)
  assert found.group.tolist() == [0, 1]
