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


def check(count, seed):
  documents, items = drawn(count, seed)
  flat = [text for texts in items.values() for text in texts]
  found = leaks.find(flat, documents)
  kinds = np.repeat(list(items), [len(texts) for texts in items.values()])
  rate = {kind: np.mean(found.find_leaked()[kinds == kind]) for kind in items}
  naive = np.mean(found.touched[kinds == 'clean'])
  whole = np.mean(found.find_leaked(1.0)[kinds == 'edited'])
  print(
    f'{len(documents)} documents: leaked {rate}; any shared 13-gram flags'
    f' {naive:.4f} of the clean; asking for all finds {whole:.4f} of the edited'
  )
  assert rate['verbatim'] >= 0.99 and rate['short'] >= 0.99
  assert rate['edited'] >= 0.9 and rate['clean'] <= 0.001
  # The contrasts: any shared run, and all runs.
  assert naive > 0.4 and whole < 0.1
  return found


def test_leaked_items_are_found_and_licences_are_not():
  found = check(60, 0)
  for number in range(60):
    assert found.document[number] == 3 * number
    assert found.document[60 + number] == 3 * number + 1


@pytest.mark.slow
def test_leaked_items_are_found_at_size():
  check(1000, 1)


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
