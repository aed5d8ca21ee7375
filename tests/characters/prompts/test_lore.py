"""Which entries a message tells; what a book may cost."""

import time

import numpy as np
import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import lore
from kaiju_jax.characters.prompts import macros
from kaiju_jax.characters.prompts import prompt

LORE = card_fields.Lore


def _found(text, *entries):
  return lore.Book(entries, 'Ada').find_all([prompt.Turn('user', text)])[0]


@pytest.mark.parametrize(
  'key, text, is_found',
  [
    ('tea', 'Some TEA, please', True),
    ('tea', 'steam and teapots', False),
    ('Tea Pot', 'a tea  pot.', True),
    ('tea pot', 'a teapot', False),
    ('tea-pot', 'a tea pot', False),
    ('tea-pot', 'The Tea-Pot!', True),
    ('🐉', 'A 🐉🐉!', True),
    ('❤️', 'with ❤ and', True),
    (':)', 'so :)', True),
    ("{{char}}'s sister", "It is Ada's sister.", True),
    ('Straße', 'in der STRASSE', True),
    ('ﬁne', 'fine', True),
    ('tea', 'ＴＥＡ', True),
    ('naïve', 'Naïve!', True),
    ('naïve', 'nai\u0308ve', True),
    ('nai\u0308ve', 'naïve', True),
    ('한국', '\u1112\u1161\u11ab\u1100\u116e\u11a8', True),
    ('猫', 'この猫が好き', True),
    ('猫が', 'この猫と', False),
    ('a+', 'aaa', False),
    ('.*', 'anything', False),
  ],
)
def test_keys_are_whole_words_in_any_case(key, text, is_found):
  entry = LORE((key.strip(),), 'x')
  assert _found(text, entry) == ((0,) if is_found else ())


def test_a_word_is_normalized_whole():
  for length in range(250):
    word = 'x' * length
    entry = LORE((word + 'é',), 'x')
    assert _found(f'a {word}e\u0301 b', entry) == (0,), length


def test_lore_is_bounded_as_a_whole():
  def check(count):
    entries = tuple(LORE(('a',), 'x' * 2**15) for _ in range(count))
    lore.check(card_fields.Fields(name='A', lore=entries))

  check(2**20 // 2**15)
  with pytest.raises(macros.TooLarge, match=r'lore\[32\]\.content: '):
    check(2**20 // 2**15 + 1)


def test_which_entries_are_told():
  entries = (
    LORE(('tea',), 'later', order=2),
    LORE(('tea', 'pot'), 'first', order=-1),
    LORE(('tea',), 'off', is_enabled=False),
    LORE(('tea',), 'always', is_constant=True),
    LORE(('tea',), ' \n'),
    LORE(('tea',), 'both', secondary_keys=('milk', 'cream')),
    LORE((), 'never'),
  )
  assert _found('tea', *entries) == (1, 0)
  assert _found('milk', *entries) == ()
  assert _found('tea with cream', *entries) == (1, 5, 0)


def test_content_reads_the_same_for_all():
  entry = LORE(('a',), ' {{char}} {{user}} {{time}} {{roll:d1}} ')
  book = lore.Book((entry,), 'Ada')
  assert book.texts == {0: 'Ada User {{time}} 1'}


def test_equal_lore_is_indexed_once_and_looked_up_once():
  def fields():
    return card_fields.Fields(
      name='Ada', lore=(LORE(('a',), 'x'),), tags=('t',)
    )

  book = lore.book(fields())
  assert book is lore.book(fields())
  assert book is not lore.book(card_fields.Fields('Bo', lore=fields().lore))
  said = [prompt.Turn('user', 'a')]
  assert book.find_all(said) == [(0,)]
  book._search = None
  assert book.find_all(said) == [(0,)]


def test_a_hostile_book_takes_no_long_search():
  text = ''.join(map(chr, np.random.default_rng(0).integers(97, 123, 300)))
  keys = [
    f'{text[n : n + 9]} {text[m : m + 9]}' for n in range(90) for m in range(50)
  ]
  parts = [keys[n : n + 64] for n in range(0, 4096, 64)]
  entries = tuple(LORE(tuple(part), 'x') for part in parts)
  lore.check(card_fields.Fields('Ada', lore=entries))
  many = (*entries, LORE(('a b',), 'x'))
  with pytest.raises(macros.TooLarge, match='more than 4,096 different keys'):
    lore.check(card_fields.Fields('Ada', lore=many))
  book = lore.Book(entries, 'Ada')
  spent = []
  for _ in range(3):
    begun = time.thread_time()
    book._look(text * 1000)
    spent.append(time.thread_time() - begun)
  assert min(spent) < 0.5
