"""Text that changed since a checkpoint is refused, and the error says how."""

import pytest

from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import same_text
from kaiju_jax.data import text as text_lib
from kaiju_jax.data import tokenizer as tokenizer_lib

TEXTS = {'a.txt': 'one', 'b.jsonl#1': 'two', 'b.jsonl#2': 'six'}


def _described(texts, held_out=None):
  corpora = [
    one
    and text_lib.corpus(
      [documents_lib.Document(name, (text,)) for name, text in one.items()],
      tokenizer_lib.Bytes(),
    )
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


def test_the_error_says_what_changed_and_what_would_be_right():
  assert _refused(_described({**TEXTS, 'b.jsonl#3': 'ten'})) == (
    'data.path: the text is not what it was at the checkpoint. Training: 3'
    ' documents of 12 tokens then, 4 documents of 16 tokens now. Changed:'
    ' b.jsonl. A run goes on with the text that it began with: restore it, or'
    ' begin another run in a new --workdir.'
  )
  moved = {'a.txt': 'one', 'c.txt': 'two', 'b.jsonl#2': 'ten'}
  message = _refused(_described(moved))
  assert 'New: c.txt.' in message and 'Changed: b.jsonl.' in message
  without = {name: TEXTS[name] for name in ('b.jsonl#1', 'b.jsonl#2')}
  assert ' Gone: a.txt. ' in _refused(_described(without))


def test_lines_in_another_order_are_another_text():
  swapped = {**TEXTS, 'b.jsonl#1': 'six', 'b.jsonl#2': 'two'}
  message = _refused(_described(swapped))
  assert 'as many, but other ones or in another order, now. Changed: b.' in (
    message
  )


def test_held_out_text_is_looked_at_too():
  then = _described(TEXTS, {'c.txt': 'old'})
  message = _refused(_described(TEXTS, {'c.txt': 'new'}), then)
  assert ' Held out: 1 ' in message and ' Training: ' not in message
  assert 'Held out: nothing then, 1 ' in _refused(
    _described(TEXTS, {'c.txt': 'new'})
  )


def test_a_tree_with_other_parents_is_another_text():
  def tree(*parents):
    document = documents_lib.Document('t.jsonl#1', ('ab', 'c', 'd'), parents)
    corpus = text_lib.corpus([document], tokenizer_lib.Bytes())
    return same_text.describe(corpus)

  same_text.check({'': tree(-1, 0, 0)}, {'': tree(-1, 0, 0)})
  assert 'Changed: t.jsonl.' in _refused(tree(-1, 0, 1), tree(-1, 0, 0))


def test_many_files_are_counted_but_not_described_one_by_one(monkeypatch):
  monkeypatch.setattr(same_text, '_MOST_FILES', 1)
  assert 'files' not in _described(TEXTS)
  message = _refused(_described({**TEXTS, 'd.txt': 'ten'}), _described(TEXTS))
  assert 'New' not in message and ' 4 documents' in message
