"""Leaked evaluation items: planted ones, boilerplate, and short items."""

import numpy as np
import pytest

from kaiju_jax.data.curation import leaks
from tests.data import planted

LICENCE = ' '.join(f'licence{number}' for number in range(40))


def drawn(count, seed):
  """Returns (documents, {kind: items}).

  Every third document and every other item begin with one licence. 'verbatim'
  and 'edited' items stand in a document, the latter with each 40th word
  changed there; 'clean' ones do not, and 'short' ones have 5 words.
  """
  rng = np.random.default_rng(seed)
  share = planted.distributions(1)[0]
  items = {
    kind: planted.texts(share, many, 80, rng)
    for kind, many in (('verbatim', count), ('edited', count), ('clean', 1000))
  }
  items['short'] = [
    f'what is short{number} or tall{number}' for number in range(count)
  ]
  documents = planted.texts(share, 6 * count, 300, rng)

  def hide(text, number):
    words = documents[number].split(' ')
    place = rng.integers(len(words))
    documents[number] = ' '.join([*words[:place], text, *words[place:]])

  for number in range(count):
    first = rng.integers(40)
    edited = planted.changed(items['edited'][number], range(first, 80, 40))
    hide(items['verbatim'][number], 3 * number)
    hide(edited, 3 * number + 1)
    hide(items['short'][number], 3 * number + 2)
  for number in range(0, len(documents), 3):
    documents[number] = f'{LICENCE} {documents[number]}'
  for texts in items.values():
    texts[::2] = [f'{LICENCE} {text}' for text in texts[::2]]
  items['short'] = [text.removeprefix(f'{LICENCE} ') for text in items['short']]
  return documents, items


@pytest.mark.parametrize(
  'count, seed', [(60, 0), pytest.param(1000, 1, marks=pytest.mark.slow)]
)
def test_leaked_items_are_found_and_licences_are_not(count, seed):
  documents, items = drawn(count, seed)
  flat = [text for texts in items.values() for text in texts]
  found = leaks.find(flat, documents)
  kinds = np.repeat(list(items), [len(texts) for texts in items.values()])
  rate = {kind: np.mean(found.find_leaked()[kinds == kind]) for kind in items}
  assert rate['verbatim'] >= 0.99 and rate['short'] >= 0.99
  assert rate['edited'] >= 0.9 and rate['clean'] <= 0.001
  # The contrasts: any shared run, and all runs.
  assert np.mean(found.touched[kinds == 'clean']) > 0.4
  assert np.mean(found.find_leaked(1.0)[kinds == 'edited']) < 0.1
  if count == 60:
    places = 3 * np.arange(60)
    np.testing.assert_array_equal(found.document[:60], places)
    np.testing.assert_array_equal(found.document[60:120], places + 1)


def test_half_of_the_rare_runs_of_one_document_decide():
  words = [f'w{number}' for number in range(26)]  # 14 runs of 13.
  item = ' '.join(words)
  half = ' '.join(words[:19])  # 7 of them.
  less = ' '.join(words[:18])
  rest = ' '.join(words[7:])
  found = leaks.find([item], [less, half])
  assert found.share.tolist() == [0.5] and found.document.tolist() == [1]
  assert found.find_leaked().tolist() == [True]
  # Two documents with less than half each are no leak.
  assert not leaks.find([item], [less, ' '.join(words[8:])]).find_leaked()[0]
  assert leaks.find([item], [less, rest]).find_leaked()[0]


def test_what_stands_in_ten_documents_is_common():
  item = ' '.join(f'w{number}' for number in range(13))
  for copies, leaked in ((9, True), (10, False)):
    found = leaks.find([item, 'a b', ''], [item] * copies + ['x b a'] * 12)
    assert found.find_leaked().tolist() == [leaked, False, False]
    assert found.common.tolist() == [not leaked, False, False]
    assert found.touched.tolist() == [True, False, False]


def test_words_are_compared_without_case_and_marks():
  item = 'Which of these, if any, is a prime number: 91, 93, 95, 97?'
  text = 'x "which OF these if any is a prime\nnumber 91 93 95 97" y'
  assert leaks.find([item], [text]).find_leaked()[0]
  assert not leaks.find([item], [text.replace('97', '99')]).find_leaked()[0]


def test_no_document_leaks_nothing():
  found = leaks.find(['a b c'], [])
  assert (
    not found.find_leaked()[0] and not found.touched[0] and not found.common[0]
  )
