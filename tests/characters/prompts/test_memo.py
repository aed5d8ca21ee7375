"""Drawn tokens come back for text, to the owner alone, within a size."""

import threading

import numpy as np
import pytest

from kaiju_jax.characters import lru
from kaiju_jax.characters.prompts import memo as memo_lib
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import bpe
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib

USER = prompt.Turn('user', 'Hi there')
REPLY = prompt.Turn('assistant', 'the cat sat')


@pytest.fixture(scope='module')
def format(tmp_path_factory):
  path = tmp_path_factory.mktemp('tokenizer') / 'tokenizer.json'
  bpe.train(path, ['the cat sat on the mat, hi there ' * 20], 300)
  return chat.format_of(tokenizer_lib.load(str(path)))


def test_a_history_sent_as_text_has_the_tokens_that_were_drawn(format):
  memo = memo_lib.Memo()
  encode, opened = format.tokenizer.encode, prompt.open_prefix(format)
  turns, place = memo.recall('bo', 'model', [USER])
  opening = prompt.conversation(opened, turns, format, 500)
  # A model may draw the text in other tokens than the encoder's: by letters.
  drawn = [int(encode(letter)[0]) for letter in REPLY.text]
  assert format.tokenizer.decode(drawn) == REPLY.text
  assert drawn != encode(REPLY.text).tolist()
  memo.keep(place, REPLY.text, drawn)

  history = [USER, REPLY, prompt.Turn('user', 'And then?')]
  turns, _ = memo.recall('bo', 'model', history)
  again = prompt.conversation(opened, turns, format, 500)
  former = [*opening.tokens, *drawn]
  assert again.tokens[: len(former)].tolist() == former
  # Without the memo the cache would be of no use from the reply on.
  without = prompt.conversation(opened, history, format, 500)
  assert without.tokens[: len(former)].tolist() != former


def test_a_reply_is_known_by_its_place_alone():
  memo = memo_lib.Memo()
  _, place = memo.recall('bo', 'model', [USER])
  memo.keep(place, REPLY.text, [1, 2])

  def recalled(owner, root, *messages):
    return memo.recall(owner, root, messages)[0][-1].tokens

  np.testing.assert_array_equal(recalled('bo', 'model', USER, REPLY), [1, 2])
  spaced = prompt.Turn('assistant', ' the cat sat\r\n')
  np.testing.assert_array_equal(recalled('bo', 'model', USER, spaced), [1, 2])
  assert recalled('al', 'model', USER, REPLY) is None
  assert recalled('bo', 'other', USER, REPLY) is None
  assert recalled('b', 'omodel', USER, REPLY) is None
  assert recalled('bo', 'model', USER._replace(text='Hi'), REPLY) is None
  assert recalled('bo', 'model', USER._replace(role='system'), REPLY) is None
  assert recalled('bo', 'model', USER, USER, REPLY) is None
  other = REPLY._replace(text='the cat')
  assert recalled('bo', 'model', USER, other) is None
  user = prompt.Turn('user', REPLY.text)
  assert recalled('bo', 'model', USER, user) is None
  given = REPLY._replace(tokens=(7,))
  assert recalled('bo', 'model', USER, given) == (7,)
  with pytest.raises(ValueError, match='surrogate'):
    recalled('bo', 'model', prompt.Turn('user', '\ud800'))


def test_it_forgets_the_oldest():
  memo = memo_lib.Memo(300)
  places = [memo.recall('bo', str(n), [USER])[1] for n in range(9)]
  for place in places:
    memo.keep(place, 'a', [1] * 68)
  known = [
    memo.recall('bo', str(n), [USER, REPLY._replace(text='a')])[0][1].tokens
    is not None
    for n in range(9)
  ]
  assert known == [False] * 6 + [True] * 3


def test_recent_values():
  held = lru.LruCache(10, len)
  held.put('a', 'aaaa')
  held.put('b', 'bbbb')
  assert held.get('a') == 'aaaa'  # The newest now.
  held.put('c', 'cccc')
  assert [held.get(one) for one in 'abc'] == ['aaaa', None, 'cccc']
  held.put('a', 6 * 'a')
  assert (held.get('a'), held.get('c')) == (6 * 'a', 'cccc')
  held.put('large', 11 * 'l')
  assert held.get('large') is None and held.get('c')
  held.put('a', 11 * 'a')  # What was held is not what is asked for any more.
  assert held.get('a') is None and held.get('c')
  held.put('d', 6 * 'd')
  assert held.get('c') and held.get('d'), 'the dropped one takes no room'
  with pytest.raises(ValueError, match='most=0: must be at least 1'):
    lru.LruCache(0)


def test_recent_values_of_several_threads():
  held = lru.LruCache(50, lambda key: 1 + key % 7)

  def work(seed):
    rng = np.random.default_rng(seed)
    for key in rng.integers(0, 40, 3000).tolist():
      held.put(key, key)
      assert held.get(key) in (None, key)

  threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
  for one in threads:
    one.start()
  for one in threads:
    one.join()
  kept = [key for key in range(40) if held.get(key) is not None]
  assert 44 <= sum(1 + key % 7 for key in kept) <= 50


def test_keys_differ_where_parts_end():
  keys = [
    ('ab', 'c'), ('a', 'bc'), ('abc',), ('abc', ''), (b'ab', 'c\ud800'),
    ('ab',), ('a', 'b'), ('', 'ab'), ('ab', ''), ('b', 'a'), ('1:a',),
    ('aaaaaaaaa9:x',), ('aaaaaaaaa', 'x1'), ('\ud800',), ('2:ab',),
  ]  # fmt: skip
  assert len({lru.key(*one) for one in keys}) == len(keys)
  for text in 'a', 'é':
    assert lru.key(text) == lru.key(text.encode())
