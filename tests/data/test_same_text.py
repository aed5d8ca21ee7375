"""Text that changed since a checkpoint is refused, and the error says how."""

import pytest

from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import same_text
from kaiju_jax.data import text as text_lib
from tests.data import toys

TEXTS = {'a.txt': 'one', 'b.jsonl#1': 'two', 'b.jsonl#2': 'six'}


def _described(texts, held_out=None):
  corpora = [
    one and toys.corpus(*one.values(), names=list(one))
    for one in (texts, held_out)
  ]
  return same_text.describe(*corpora)


def _refused(now, then=None):
  with pytest.raises(ValueError) as error:
    same_text.check({'': then or _described(TEXTS)}, {'': now})
  return str(error.value)


def test_the_same_text_is_accepted_and_so_are_renamed_files():
  same_text.check({'': _described(TEXTS)}, {'': _described(dict(TEXTS))})
  renamed = {f'new-{name}': text for name, text in TEXTS.items()}
  same_text.check({'': _described(TEXTS)}, {'': _described(renamed)})
  # A checkpoint of a version that did not look at the text.
  same_text.check(None, {'': _described(TEXTS)})


HELD = {'c.txt': 'old'}


@pytest.mark.parametrize(
  'now, then, held, said',
  [
    (
      TEXTS | {'b.jsonl#3': 'ten'},
      None,
      None,
      ['Training: 3 documents of 12 tokens then, 4 documents of 16 tokens now']
      + ['Changed: b.jsonl.'],
    ),
    (
      {'a.txt': 'one', 'c.txt': 'two', 'b.jsonl#2': 'ten'},
      None,
      None,
      ['New: c.txt.', 'Changed: b.jsonl.'],
    ),
    ({'b.jsonl#1': 'two', 'b.jsonl#2': 'six'}, None, None, ['Gone: a.txt.']),
    (
      TEXTS | {'b.jsonl#1': 'six', 'b.jsonl#2': 'two'},
      None,
      None,
      ['in another order, now. Changed: b.'],
    ),
    (TEXTS, HELD, {'c.txt': 'new'}, ['Held out: 1 ']),
    (TEXTS, None, HELD, ['Held out: nothing then, 1 ']),
  ],
)
def test_the_error_says_what_changed(now, then, held, said):
  message = _refused(_described(now, held), _described(TEXTS, then))
  assert message.startswith('data.path: the text is not what it was')
  assert all(one in message for one in said), message
  assert (' Training: ' in message) == (now != TEXTS)


def test_a_tree_with_other_parents_is_another_text():
  def tree(*parents):
    document = documents_lib.Document('t.jsonl#1', ('ab', 'c', 'd'), parents)
    corpus = text_lib.corpus([document], toys.BYTES)
    return same_text.describe(corpus)

  same_text.check({'': tree(-1, 0, 0)}, {'': tree(-1, 0, 0)})
  assert 'Changed: t.jsonl.' in _refused(tree(-1, 0, 1), tree(-1, 0, 0))


def test_many_files_are_counted_but_not_described_one_by_one(monkeypatch):
  monkeypatch.setattr(same_text, '_MOST_FILES', 1)
  assert 'files' not in _described(TEXTS)
  message = _refused(_described({**TEXTS, 'd.txt': 'ten'}), _described(TEXTS))
  assert 'New' not in message and ' 4 documents' in message
