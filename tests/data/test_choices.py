"""Choices between replies: trees, their extras, and the reference's file."""

import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.data import choices
from kaiju_jax.data import text
from kaiju_jax.data import turns
from tests.data import talks

END = talks.FORMAT.stop_tokens[0]


def test_replies_are_siblings_and_the_kept_one_goes_on():
  corpus, counts = turns.choices(talks.TALKS[:1], talks.FORMAT)
  assert counts == turns.Counts(conversations=1, replies=5)
  tokens, parents = corpus.tokens, corpus.parents[0]
  texts = [
    bytes(tokens[low:high].tolist())
    for one in corpus.choices[0]
    for low, high in one.spans
  ]
  assert texts == [b'yes!\x03', b'no\x03', b'b\x03', b'c\x03', b'a\x03']
  assert [one.kept for one in corpus.choices[0]] == [1, 2]
  is_weighted = corpus.weights > 0
  assert bytes(tokens[is_weighted].tolist()) == b''.join(texts)
  # Each reply sees what stands before its turn, and itself.
  seen = visibility.as_dense(visibility.tree(parents))[0]
  (yes, no), (b, c, a) = (one.spans for one in corpus.choices[0])
  said = [('user', '0?'), ('assistant', 'no'), ('user', '1?')]
  for (_, end), before, own in (
    (yes, said[:1], 'yes!'),
    (no, said[:1], 'no'),
    (b, said, 'b'),
    (c, said, 'c'),
    (a, said, 'a'),
  ):
    wanted = talks.FORMAT.document([*before, ('assistant', own)])
    np.testing.assert_array_equal(tokens[seen[end - 1]], wanted)


def test_what_is_no_choice_is_context_and_counted():
  told = talks.talk(
    talks.message('a', 'b', 'c', kept=(0, 1)),  # A tie.
    talks.message('same', 'same'),  # The kept text again, too.
    talks.message('lone'),
    talks.message('p', 'p', 'q', 'p'),
    talks.Message('assistant', 'not read'),
  )
  corpus, counts = turns.choices(
    [told, talks.talk(talks.message('a'))], talks.FORMAT
  )
  assert counts == turns.Counts(
    conversations=1, replies=2, dropped=1, ties=2, single=2, repeated=2
  )
  assert len(corpus.choices[0]) == 1
  data = bytes(corpus.tokens.tolist())
  assert b'\x02a\x03' in data and b'\x02b\x03' not in data
  assert b'lone' in data and b'not read' not in data
  assert bytes(corpus.tokens[corpus.weights > 0].tolist()) == b'q\x03p\x03'
  assert (
    turns.choices([talks.talk(talks.message('a'))], talks.FORMAT)[0] is None
  )


def test_rows_number_their_replies():
  corpus, _ = turns.choices(talks.TALKS, talks.FORMAT)
  reference = [np.arange(5.0), np.array([7.0, 8.0])]
  length = len(corpus.tokens) + 3
  source = text.Rows(corpus, length, shuffle=False)
  rows = choices.ChoiceRows(source, corpus.choices, reference)
  assert len(rows) == 1
  row = rows[0]
  names = sorted(
    (choices.REPLY, choices.GROUP, choices.KEPT, choices.REFERENCE)
  )
  assert sorted(row.extras) == names
  reply_L = row.extras[choices.REPLY]
  assert len(row.extras[choices.GROUP]) == choices.count_slots(length)
  for name, wanted in (
    (choices.GROUP, [0, 1, 1, 2, 2, 2, 3, 3]),
    (choices.KEPT, [0, 0, 1, 0, 0, 1, 0, 1]),
    (choices.REFERENCE, [0, 0, 1, 2, 3, 4, 7, 8]),
  ):
    assert row.extras[name][:8].tolist() == wanted
    assert not row.extras[name][8:].any()
  ends = [bytes(row.tokens[reply_L == n].tolist()) for n in range(1, 8)]
  assert ends == [
    *(b'yes!\x03', b'no\x03', b'b\x03', b'c\x03', b'a\x03', b'x\x03', b'y\x03')
  ]
  np.testing.assert_array_equal(row.weight > 0, reply_L > 0)
  assert set(row.weight[reply_L > 5]) == {0.5}


def test_a_reference_is_found_by_its_text(tmp_path):
  corpus, _ = turns.choices(talks.TALKS, talks.FORMAT)
  names = list(choices.hash_documents(corpus))
  values = [np.arange(5, dtype=np.float32), np.array([7, 8], np.float32)]
  one = choices.Reference('model', 'bytes', dict(zip(names, values)))
  choices.write_reference(tmp_path / 'r.npz', one)
  held = choices.read_reference(tmp_path / 'r.npz')
  assert (held.model, held.tokenizer) == ('model', 'bytes')
  # Of the second conversation alone, whose place in the file has changed.
  alone = turns.choices(talks.TALKS[1:], talks.FORMAT)[0]
  (own,) = choices.find_reference(held, alone, 'data.reference')
  np.testing.assert_array_equal(own, values[1])
  other = turns.choices([talks.talk(talks.message('x', 'Y'))], talks.FORMAT)[0]
  with pytest.raises(ValueError, match='has no numbers of a#1, which was'):
    choices.find_reference(held, other, 'data.reference')
  with pytest.raises(FileNotFoundError, match='no such file'):
    choices.read_reference(tmp_path / 'none.npz')
  for data in (b'', b'no zip', (tmp_path / 'r.npz').read_bytes()[:99]):
    (tmp_path / 'bad.npz').write_bytes(data)
    with pytest.raises(ValueError, match='not a file of'):
      choices.read_reference(tmp_path / 'bad.npz')
