"""Which tokens of a conversation are trained, and what does not fit."""

import numpy as np
import pytest

from kaiju_jax.data import chat
from kaiju_jax.data import conversations
from kaiju_jax.data import turns
from tests.data import toys

_Message = conversations.WeightedMessage
SYSTEM = _Message('system', 'Be kind.')


def talk(*texts, name='a#1'):
  """Returns a conversation: a system message, then user and assistant."""
  said = [
    _Message(('user', 'assistant')[n % 2], text) for n, text in enumerate(texts)
  ]
  return conversations.Conversation(name, (SYSTEM, *said))


@pytest.fixture(scope='module')
def formats(tmp_path_factory):
  """Bytes between control characters, and ChatML."""
  path = tmp_path_factory.mktemp('tokenizer') / 'chatml.json'
  return [chat.format_of(one) for one in (toys.BYTES, toys.train_chatml(path))]


def test_replies_and_their_ends_are_trained_and_nothing_else(formats):
  said = talk('Hi!', 'Hello.', 'Who?', 'Me.\nYou?', 'Bye')
  said.messages[2]._replace(weight=0.5)
  messages = list(said.messages)
  messages[4] = messages[4]._replace(weight=0.5)
  said = said._replace(messages=tuple(messages))
  for format in formats:
    corpus, counts = turns.fine_tuning([said, talk('Hi!', 'Yo.')], format, 256)
    # The last message teaches nothing, so that it is left out.
    pairs = [(one.role, one.content) for one in messages[:-1]]
    size = corpus.begins[1]
    np.testing.assert_array_equal(corpus.tokens[:size], format.document(pairs))
    wanted, end = [], format.stop_tokens[0]
    for text, weight in ('Hello.', 1.0), ('Me.\nYou?', 0.5), ('Yo.', 1.0):
      tokens = [*format.tokenizer.encode(text), end]
      wanted += [(token, weight) for token in tokens]
    is_trained = corpus.weights > 0
    found = zip(corpus.tokens[is_trained], corpus.weights[is_trained])
    assert list(found) == wanted
    assert np.sum(corpus.tokens[is_trained] == end) == counts.replies == 3
    assert counts == turns.Counts(conversations=2, replies=3)


def test_an_end_may_have_another_weight(formats):
  format = formats[1]
  corpus, _ = turns.fine_tuning([talk('Hi!', 'Yo.')], format, 256, 0.25)
  is_end = corpus.tokens == format.stop_tokens[0]
  assert sorted(corpus.weights[is_end]) == [0, 0, 0.25]
  assert set(corpus.weights[~is_end]) == {0, 1}


def test_a_long_conversation_keeps_its_last_turns(formats):
  texts = [f'{n}' * 9 for n in range(10)]
  said = talk(*texts)
  for format in formats:
    sizes = {}
    for first in (1, 3, 5, 7, 9):
      kept = said.messages[:1] + said.messages[first:]
      pairs = [(m.role, m.content) for m in kept]
      sizes[first] = len(format.document(pairs))

    for length in range(sizes[9], sizes[1] + 1):
      corpus, counts = turns.fine_tuning([said], format, length)
      first = next(n for n in sizes if sizes[n] <= length)
      assert len(corpus.tokens) == sizes[first]
      assert counts.turns == first - 1
      assert counts.cut == (first > 1)
      text = format.tokenizer.decode(corpus.tokens)
      assert SYSTEM.content in text
      assert [one in text for one in texts] == [
        n >= first - 1 for n in range(10)
      ]
    assert turns.fine_tuning([said], format, sizes[9] - 1) == (
      None,
      turns.Counts(dropped=1),
    )


def test_a_conversation_without_a_trained_reply_is_left_out(formats):
  silent = conversations.Conversation(
    'a#1', (_Message('user', 'Hi!'), _Message('assistant', 'Yo.', weight=0.0))
  )
  found = turns.fine_tuning([silent], formats[0], 64)
  assert found == (None, turns.Counts(dropped=1))
