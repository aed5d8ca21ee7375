"""Conversations in the forms that people have, and the lines refused."""

import gzip
import json

import pytest
import zstandard

from kaiju_jax.data import conversations

USER = {'role': 'user', 'content': 'Hi!'}
SAID = {'role': 'assistant', 'content': 'Hello.'}


def _replies(*kept):
  return [
    {'content': f'{index}', 'kept': one} for index, one in enumerate(kept)
  ]


def _segment(text, parent, role, **more):
  return {'text': text, 'parent': parent, 'role': role, **more}


def test_three_forms_are_one_conversation():
  messages = [{'role': 'system', 'content': 'Be kind.'}, USER, SAID]
  share_gpt = [
    {'from': 'system', 'value': 'Be kind.'},
    {'from': 'human', 'value': 'Hi!'},
    {'from': 'gpt', 'value': 'Hello.'},
  ]
  segments = [
    _segment('Be kind.', -1, 'system'),
    _segment('Hi!', 0, 'user'),
    _segment('Hello.', 1, 'assistant'),
  ]
  found = [
    conversations.parse({'id': 7, 'messages': messages}),
    conversations.parse({'conversations': share_gpt}),
    conversations.parse({'segments': segments}),
  ]
  assert found[0] == (
    conversations.WeightedMessage('system', 'Be kind.'),
    conversations.WeightedMessage('user', 'Hi!'),
    conversations.WeightedMessage('assistant', 'Hello.'),
  )
  assert found[1] == found[2] == found[0]


def test_weights_of_line_and_message_multiply():
  last = {**SAID, 'weight': 3}
  found = conversations.parse(
    {'weight': 0.5, 'messages': [USER, SAID, USER, last]}
  )
  assert [one.weight for one in found] == [0.5, 0.5, 0.5, 1.5]


def test_a_choice_goes_on_below_the_kept_reply():
  turn = {'role': 'assistant', 'replies': _replies(False, True, True)}
  given = conversations.parse({'messages': [USER, turn, USER, SAID]})
  assert given[1].content == '1'
  assert [one.is_kept for one in given[1].replies] == [False, True, True]
  segments = [
    _segment('Hi!', -1, 'user'),
    _segment('0', 0, 'assistant', choice='swiped'),
    _segment('1', 0, 'assistant', choice='kept'),
    _segment('Hi!', 2, 'user'),
    _segment('Hello.', 3, 'assistant'),
    _segment('2', 0, 'assistant', choice='kept'),
  ]
  assert conversations.parse({'segments': segments}) == given


REFUSED = {
  'two forms': ({'messages': [USER], 'segments': []}, "has ['messages', 'seg"),
  'no form': ({'text': 'Hi!'}, "expected an object with one of 'messages'"),
  'a list': ([USER], 'expected an object with one of'),
  'no messages': ({'messages': []}, "'messages' must be a list, not empty"),
  'a string': ({'messages': ['Hi!']}, r'messages[0]: expected an object, not'),
  'role': (
    {'messages': [USER, {'role': 'tool', 'content': 'x'}]},
    "messages[1]: unknown role 'tool'; expected one of system, user, assistant",
  ),
  'no role': ({'messages': [{'content': 'x'}]}, '[0]: unknown role None'),
  'twice': (
    {'messages': [USER, USER]},
    "messages[1]: role 'user' follows 'user'; one system message may come",
  ),
  'late system': (
    {'messages': [USER, {'role': 'system', 'content': 'x'}]},
    "messages[1]: role 'system' follows 'user'",
  ),
  'empty': (
    {'conversations': [{'from': 'human', 'value': ' \x02\n'}]},
    'conversations[0]: "value" is empty',
  ),
  'no text': ({'messages': [{'role': 'user'}]}, '"content" must be a string'),
  'surrogate': (
    {'messages': [{'role': 'user', 'content': '\ud800'}]},
    'messages[0]: "content": text holds the surrogate',
  ),
  'no reply': ({'messages': [USER]}, 'no assistant message'),
  'weight': (
    {'messages': [USER, SAID], 'weight': -1},
    'the line: "weight" must be a number of at least 0, not -1',
  ),
  'weight of nan': (
    {'messages': [USER, {**SAID, 'weight': float('nan')}]},
    'messages[1]: "weight" must be',
  ),
  'none kept': (
    {'messages': [USER, {'role': 'assistant', 'replies': _replies(False)}]},
    'messages[1]: none of the 1 replies is kept',
  ),
  'kept of no kind': (
    {'messages': [USER, {'role': 'assistant', 'replies': _replies(1)}]},
    'messages[1].replies[0]: expected an object with "content", and "kept"',
  ),
  'replies and content': (
    {'messages': [USER, {**SAID, 'replies': _replies(True)}]},
    'messages[1]: "replies" stand in an assistant message, instead',
  ),
  'a user who is swiped': (
    {'messages': [{'role': 'user', 'replies': _replies(True)}]},
    'messages[0]: "replies" stand in an assistant message',
  ),
  'siblings without a choice': (
    {
      'segments': [
        _segment('Hi!', -1, 'user'),
        _segment('0', 0, 'assistant'),
        _segment('1', 0, 'assistant'),
      ]
    },
    'segments[1]: segments of one parent must be replies of the assistant',
  ),
  'below a swiped reply': (
    {
      'segments': [
        _segment('0', -1, 'assistant', choice='swiped'),
        _segment('1', -1, 'assistant', choice='kept'),
        _segment('Hi!', 0, 'user'),
      ]
    },
    'segments[0]: the conversation goes on below one reply',
  ),
  'a circle': (
    {
      'segments': [
        _segment('Hi!', -1, 'user'),
        _segment('0', 2, 'assistant'),
        _segment('1', 1, 'assistant'),
      ]
    },
    'segments[0]: 2 of 3 segments are not below the first message',
  ),
  'a parent outside': (
    {'segments': [_segment('Hi!', 1, 'user')]},
    'segments[0]: "parent" must be -1 or the index of a segment (0…0), not 1',
  ),
}


@pytest.mark.parametrize('name', REFUSED)
def test_a_line_is_refused_by_name(name, tmp_path):
  record, message = REFUSED[name]
  path = tmp_path / 'chats.jsonl'
  path.write_text('\n' + json.dumps(record) + '\n')
  with pytest.raises(ValueError) as raised:
    list(conversations.read(str(path)))
  assert f'{path}, line 2: ' in str(raised.value)
  assert message in str(raised.value)
  assert '\n' not in str(raised.value)


def test_files_without_a_conversation_are_refused(tmp_path):
  path = tmp_path / 'chats.jsonl'
  for data, message in (
    (b'', 'the files hold no conversation'),
    (b'\xff', f'{path}: not text: byte 0xff'),
    (b'Hi!', f'{path}, line 1: '),
  ):
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
      list(conversations.read(str(path)))
  with pytest.raises(ValueError, match='must name a'):
    list(conversations.read(''))


def test_a_byte_order_mark_is_no_conversation(tmp_path):
  line = '{"messages": [{"role": "assistant", "content": "Hi"}]}\n'
  file = tmp_path / 'chats.jsonl'
  file.write_text(f'\ufeff{line}{line}')
  assert len(list(conversations.read(str(file)))) == 2
  file.write_text(f'{line}\ufeff{line}')
  with pytest.raises(ValueError, match='line 2'):
    list(conversations.read(str(file)))
  file.write_bytes(gzip.compress(line.encode()))
  with pytest.raises(ValueError, match=r'is compressed or packed \(gzip\)'):
    list(conversations.read(str(file)))


def test_packed_files_are_read_as_others(tmp_path):
  line = '{"messages": [{"role": "assistant", "content": "é%d"}]}\n'
  lines = ''.join(line % n for n in range(9)).encode()
  (tmp_path / 'a.jsonl').write_bytes(lines)
  (plain, *_) = expected = list(conversations.read(str(tmp_path / 'a.jsonl')))
  assert len(expected) == 9 and plain.name == 'a.jsonl#1'
  for name, packed in (
    ('a.jsonl.gz', gzip.compress(lines)),
    ('a.jsonl.zst', zstandard.compress(lines)),
  ):
    file = tmp_path / name
    file.write_bytes(packed)
    found = list(conversations.read(str(file)))
    assert [x.messages for x in found] == [x.messages for x in expected]
    assert found[3].name == f'{name}#4'
    file.write_bytes(packed[:-9])
    with pytest.raises(ValueError, match=f'{name}: is not whole'):
      list(conversations.read(str(file)))
