"""A corpus cut into rows: all of it, once an epoch, in a pure order."""

import collections
import dataclasses

import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.data import config as data_config
from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import packing
from kaiju_jax.data import text as text_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data.store import corpora
from tests.data import toys

BYTES = toys.BYTES
Document = documents_lib.Document


def _random_documents(rng, trees):
  """Texts of 1 to 24 characters, or trees of at most 25 tokens."""
  documents = []
  for number in range(int(rng.integers(1, 12))):
    if trees and rng.random() < 0.5:
      segments = tuple('abcdefgh'[: rng.integers(1, 9)] for _ in range(3))
      documents.append(Document(f'{number}', segments, (-1, 0, 0)))
    else:
      text = ''.join(map(chr, rng.integers(97, 123, rng.integers(1, 25))))
      documents.append(Document(f'{number}', (text,)))
  return documents


def _random_corpus(rng, trees):
  return text_lib.corpus(_random_documents(rng, trees), BYTES)


def _assert_rows_equal(one, other):
  assert one.extras is other.extras is None
  for name, a, b in zip(packing.Row._fields[:-1], one, other):
    np.testing.assert_array_equal(a, b, err_msg=name)


def test_a_corpus():
  corpus = text_lib.corpus(
    [Document('a', ('é',)), Document('b', ('x', 'y', 'z'), (-1, 0, 0))], BYTES
  )
  assert corpus.tokens.tolist() == [0, 0xC3, 0xA9, 0, *b'xyz']
  assert corpus.tokens.dtype == np.uint8
  assert corpus.begins.tolist() == [0, 3, 7]
  assert {n: p.tolist() for n, p in corpus.parents.items()} == {
    1: [-1, 0, 1, 1]
  }
  assert corpus.names == ('a', 'b')
  assert corpus.token_bytes is None


def test_bytes_are_counted_for_any_tokenizer(tmp_path):
  import tokenizers

  vocabulary = {'<s>': 0, 'naïve': 1, 'cat': 2, '?': 3}
  word_level = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(vocabulary, unk_token='?')
  )
  word_level.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  word_level.save(str(tmp_path / 't.json'))
  tokenizer = tokenizer_lib.load(str(tmp_path / 't.json'))
  documents = [Document('a', ('naïve cat dog\n',))]
  corpus = text_lib.corpus(documents, tokenizer, measured=True)
  assert corpus.tokens.tolist() == [0, 1, 2, 3]
  assert corpus.token_bytes.tolist() == [0, 6, 4, 5]


@pytest.mark.parametrize('trees', [False, True])
def test_a_row_counts_the_bytes_that_carry_its_loss(trees):
  rng = np.random.default_rng(6)
  documents = _random_documents(rng, trees)
  rows = text_lib.Rows(text_lib.corpus(documents, BYTES, True), 30, seed=2)
  for index in range(40):
    assert rows.byte_count(index) == rows[index].weight.sum()


def test_the_smallest_type_holds_the_vocabulary():
  class Wide(tokenizer_lib.Bytes):
    def encode(self, text):
      return super().encode(text) + self.vocab_size - 256

  for size, dtype in ((257, np.uint16), (65536, np.uint16), (65537, np.uint32)):
    tokenizer = Wide()
    tokenizer.vocab_size = size
    corpus = text_lib.corpus([Document('a', ('\x7f',))], tokenizer)
    assert corpus.tokens.dtype == dtype
    assert corpus.tokens[-1] == size - 256 + 127
    row = text_lib.Rows(corpus, 2)[0]
    assert row.tokens.tolist() == [0, size - 256 + 127]
    assert row.tokens.dtype == np.int32


def test_documents_go_on_in_the_next_row():
  rows = list(text_lib.Rows(toys.corpus('abcd', 'efg'), 4, shuffle=False))
  found = [
    (bytes(x.tokens.tolist()), x.weight.tolist(), x.source.tolist())
    for x in rows
  ]
  assert found == [
    (b'\0abc', [0, 1, 1, 1], [0, 0, 0, 0]),
    (b'd\0ef', [0, 0, 1, 1], [0, 1, 1, 1]),
    (b'g\0\0\0', [0, 0, 0, 0], [1, -1, -1, -1]),
  ]
  assert rows[1].position.tolist() == [0, 0, 1, 2]


def test_a_tree_skips_to_the_next_row():
  documents = [
    Document('a', ('ab',)),
    Document('t', ('x', 'y', 'z'), (-1, 0, 0)),
    Document('b', ('cdefg',)),
  ]
  corpus = text_lib.corpus(documents, BYTES)
  rows = text_lib.Rows(corpus, 5, shuffle=False)
  assert [bytes(row.tokens.tolist()) for row in rows] == [
    b'\0ab\0\0',
    b'\0xyz\0',
    b'cdefg',
  ]
  assert rows[0].source.tolist() == [0, 0, 0, -1, -1]
  assert rows[1].predecessor.tolist() == [0, 0, 1, 1, 4]
  assert rows[1].weight.tolist() == [0, 1, 1, 1, 0]


@pytest.mark.parametrize('trees', [False, True])
@pytest.mark.parametrize('shuffle', [False, True])
def test_every_token_once_an_epoch(trees, shuffle):
  rng = np.random.default_rng(1)
  for _ in range(40):
    corpus = _random_corpus(rng, trees)
    length = int(rng.integers(26 if trees else 2, 40))
    rows = text_lib.Rows(corpus, length, 3, shuffle)
    expected = collections.Counter()
    for n in range(len(corpus.names)):
      span = corpus.tokens[corpus.begins[n] : corpus.begins[n + 1]]
      expected.update((n, int(token)) for token in span)
    total = sum(expected.values())
    index = 0
    for epoch in range(3):
      got = collections.Counter()
      while sum(got.values()) < total:
        row = rows[index]
        real = row.source >= 0
        got.update(zip(row.source[real].tolist(), row.tokens[real].tolist()))
        index += 1
      assert got == expected
      if not trees or epoch == 0:
        assert index == (epoch + 1) * len(rows)


def test_pieces_of_a_document_join_to_the_document():
  rng = np.random.default_rng(0)
  texts = [''.join(map(chr, rng.integers(33, 127, 1000))) for _ in range(3)]
  rows = text_lib.Rows(toys.corpus(*texts), 64, seed=5)
  source = b'\0' + texts[1].encode()
  parts = [bytes(row.tokens[row.source == 1].tolist()) for row in rows]
  parts.sort(key=source.find)
  assert b''.join(parts) == source
  assert max(map(len, parts)) == 64


@pytest.mark.parametrize('trees', [False, True])
def test_rows_are_a_pure_function_of_the_index(trees):
  rng = np.random.default_rng(2)
  corpus = _random_corpus(rng, trees)
  straight = text_lib.Rows(corpus, 30, seed=7)
  rows = [straight[n] for n in range(60)]
  jumping = text_lib.Rows(corpus, 30, seed=7)
  for index in rng.permutation(60).tolist():
    _assert_rows_equal(jumping[index], rows[index])


def test_epochs_and_seeds_come_in_different_orders():
  corpus = toys.corpus(*(chr(n) * 30 for n in range(40, 100)))
  rows = text_lib.Rows(corpus, 62, seed=0)
  other = text_lib.Rows(corpus, 62, seed=1)
  size = len(rows)

  def order(source, begin):
    return [source[n].tokens[1:].tolist() for n in range(begin, begin + size)]

  assert order(rows, 0) != order(rows, size)
  assert order(rows, 0) != order(other, 0)
  assert order(rows, 0) == order(text_lib.Rows(corpus, 62, seed=0), 0)
  # Rows are shuffled, not documents alone: neighbours do not follow.
  long = text_lib.Rows(toys.corpus('x' * 3000), 30)
  begins = [n for n in range(len(long)) if long[n].tokens[0] == 0]
  assert begins != [0]


def test_documents_have_new_neighbours_in_every_epoch():
  rows = text_lib.Rows(toys.corpus(*(chr(n) * 15 for n in range(40, 100))), 32)
  assert len(rows) == 30

  def neighbours(epoch):
    drawn = (rows[n].source for n in range(epoch * 30, epoch * 30 + 30))
    return {frozenset(source.tolist()) for source in drawn}

  assert all(len(pair) == 2 for pair in neighbours(0))
  assert len(neighbours(0) & neighbours(1)) < 10


def test_far_rows_cost_no_more_than_near_ones():
  rows = text_lib.Rows(toys.corpus('ab', 'cd'), 4, seed=0)
  assert rows[10**12].tokens.shape == (4,)
  with pytest.raises(IndexError, match='row -1'):
    rows[-1]


def test_packed_documents_do_not_see_each_other():
  rng = np.random.default_rng(4)
  for _ in range(20):
    rows = text_lib.Rows(_random_corpus(rng, trees=True), 32, seed=1)
    batch = packing.stack(list(rows))
    visibility_lib.check(batch.visibility(), 32)
    dense = visibility_lib.as_dense(batch.visibility())
    same = batch.source_BL[:, :, None] == batch.source_BL[:, None, :]
    assert not (dense & ~same).any()
    assert not dense[batch.source_BL < 0].any()
    # The logits that predict a token do not see it, and it sees their place.
    b, t = np.nonzero(batch.weight_BL)
    predecessor = batch.predecessor_BL[b, t]
    assert not dense[b, predecessor, t].any()
    assert dense[b, t, predecessor].all()


def test_a_tree_longer_than_a_row():
  tree = Document('chat.jsonl#3', ('ab', 'c', 'd'), (-1, 0, 0))
  corpus = text_lib.corpus([tree], BYTES)
  text_lib.Rows(corpus, 5)
  with pytest.raises(ValueError, match=r'data.length=4: chat.jsonl#3'):
    text_lib.Rows(corpus, 4)


def _config(path, **kwargs):
  return data_config.DataConfig(path=str(path), **kwargs)


def test_load_holds_out_by_name(tmp_path):
  for n in range(50):
    (tmp_path / f'{n}.txt').write_text(f'text {n}')
  training, held_out = corpora.load(_config(tmp_path, held_out=0.2))
  assert sorted(training.names + held_out.names) == sorted(
    f'{n}.txt' for n in range(50)
  )
  assert 3 <= len(held_out.names) <= 20
  everything, nothing = corpora.load(_config(tmp_path, held_out=0))
  assert nothing is None and len(everything.names) == 50


def test_load_errors(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'data\.path'):
    corpora.load(_config(tmp_path / 'none'))
  (tmp_path / 'a.txt').write_text('')
  with pytest.raises(ValueError, match=r'data\.path=.*hold no text'):
    corpora.load(_config(tmp_path))
  (tmp_path / 'a.txt').write_text('x')
  with pytest.raises(ValueError, match=r'at least two documents in data\.path'):
    corpora.load(_config(tmp_path, held_out=0.01))


@pytest.mark.parametrize('trees', [False, True])
def test_what_lies_beside_a_token_comes_with_it(trees):
  """Cut documents, trees, any epoch and any length."""
  rng = np.random.default_rng(8)
  for length in (26, 31, 64):
    corpus = _random_corpus(rng, trees)
    rows = text_lib.Rows(
      corpus,
      length,
      seed=4,
      beside=lambda first, end: {'place_BL': np.arange(first + 1, end + 1)},
    )
    index, total = 0, len(corpus.tokens)
    for _ in range(3):
      seen = []
      while len(seen) < total:
        row = rows[index]
        place_L = row.extras['place_BL']
        real_L = row.source >= 0
        assert not place_L[~real_L].any()
        place_L = place_L[real_L] - 1
        np.testing.assert_array_equal(
          corpus.tokens[place_L], row.tokens[real_L]
        )
        document_L = np.searchsorted(corpus.begins, place_L, 'right') - 1
        np.testing.assert_array_equal(document_L, row.source[real_L])
        seen += place_L.tolist()
        index += 1
      assert sorted(seen) == list(range(total))


def test_the_digest_tells_corpora_apart():
  one = toys.corpus('ab', 'cd')
  assert text_lib.digest(one) == text_lib.digest(toys.corpus('ab', 'cd'))
  tree = text_lib.corpus([Document('t', ('a', 'b', 'c'), (-1, 0, 0))], BYTES)
  line = text_lib.corpus([Document('t', ('abc',))], BYTES)
  others = [toys.corpus('ab', 'ce'), toys.corpus('cd', 'ab'), tree, line]
  for factor in (0.5, 2.0):
    weights = np.full(len(one.tokens), factor, np.float32)
    others.append(dataclasses.replace(one, weights=weights))
  digests = {text_lib.digest(corpus) for corpus in [one, *others]}
  assert len(digests) == 7
