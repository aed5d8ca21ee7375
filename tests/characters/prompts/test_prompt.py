"""Prompts that a cache finds again: what they say, and what they begin with."""

import dataclasses
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import lore as lore_lib
from kaiju_jax.characters.prompts import macros
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import bpe
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from tests.serving import random_fields

BYTES = chat.format_of(tokenizer_lib.Bytes())
ENCODED = prompt.Encoded(BYTES)
OPENED = prompt.open_prefix(BYTES)
ADA = card_fields.Fields(
  name='Ada Lovelace',
  nickname='Ada',
  description='{{char}} is an engineer.\n',
  personality=' dry ',
  scenario='{{user}} visits <BOT>.',
  examples='<START>\n{{user}}: hi\n<start>\n{{char}}: hello',
  system_prompt='Be {{char}}. {{original}}',
  post_history='{{Original}}Be brief.',
  lore=(
    card_fields.Lore(('engine',), 'The engine runs on steam.'),
    card_fields.Lore((), 'It is 1843.', is_constant=True, order=2),
    card_fields.Lore((), 'London.', is_constant=True, order=1),
    card_fields.Lore((), 'Off.', is_constant=True, is_enabled=False),
  ),
  greeting='Hello, {{user}}. {{roll:1}} {{time}}',
  alternate_greetings=('Hm?',),
)


def _text(tokens):
  return bytes(tokens.astype(np.uint8)).decode()


def _said(*messages, **options):
  """The text of a prompt without a prefix; messages by their first letter."""
  roles = {'u': 'user', 'a': 'assistant', 's': 'system'}
  turns = [prompt.Turn(roles[one[0]], one[2:]) for one in messages]
  options = {'room': 10_000, **options}
  return prompt.conversation(OPENED, turns, BYTES, **options)


def _expected(*messages):
  roles = {'u': 'user', 'a': 'assistant', 's': 'system'}
  text = chat.text_of((roles[one[0]], one[2:]) for one in messages)
  return f'\0{text}\x01assistant\x02'


def test_a_prefix():
  prefix = prompt.prefix(ADA, BYTES)
  assert prefix.dtype == np.int32
  assert _text(prefix) == (
    '\0\x01system\x02'
    'Be Ada. You are Ada. You talk with User.\n\n'
    'Ada is an engineer.\n\n'
    'Personality: dry\n\n'
    'Scenario: User visits Ada.\n\n'
    'London.\n\n'
    'It is 1843.\n\n'
    'How Ada talks:\n\nUser: hi\n\nAda: hello\n\n'
    'Be brief.'
    '\x03'
  )
  bare = prompt.prefix(card_fields.Fields(name='Bo'), BYTES)
  assert _text(bare) == '\0\x01system\x02You are Bo. You talk with User.\x03'


def test_only_what_is_told_changes_a_prefix():
  rng = random.Random(0)
  unread = {
    *('greeting', 'alternate_greetings', 'creator', 'notes', 'tags'),
    *('version_name', 'extensions', 'other'),
  }
  base = prompt.persona(ADA)
  other = random_fields.draw(rng)
  while not all(dataclasses.astuple(other)):
    other = random_fields.draw(rng)
  for field in dataclasses.fields(ADA):
    changed = dataclasses.replace(
      ADA, **{field.name: getattr(other, field.name)}
    )
    is_equal = prompt.persona(changed) == base
    # The name is not told beside a nickname, and triggered lore not here.
    assert is_equal == (field.name in unread | {'name'}), field.name
  lore = (*ADA.lore, card_fields.Lore(('a',), 'b'))
  assert prompt.persona(dataclasses.replace(ADA, lore=lore)) == base


def test_a_prefix_is_the_same_in_every_process():
  fields = 'card_fields.Fields("A", description="{{random:a,b,c}}{{roll:99}}")'
  code = (
    'from kaiju_jax.data import chat, tokenizer;'
    'from kaiju_jax.characters.cards import card_fields;'
    'from kaiju_jax.characters.prompts import prompt;'
    f'f = {fields};'
    'format = chat.format_of(tokenizer.Bytes());'
    'print(prompt.prefix(f, format).tolist())'
  )
  made = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  ).stdout
  fields = card_fields.Fields('A', description='{{random:a,b,c}}{{roll:99}}')
  assert made.strip() == str(prompt.prefix(fields, BYTES).tolist())
  assert '{{' not in prompt.persona(fields)


def test_a_character_that_is_too_long_is_named():
  fields = card_fields.Fields(name='A', description='x' * 16_384)
  with pytest.raises(prompt.TooLong, match=r'16,426 tokens: at most 16,384'):
    prompt.prefix(fields, BYTES)
  size = len(prompt.prefix(fields, BYTES, most=20_000))
  prompt.prefix(fields, BYTES, most=size)
  with pytest.raises(prompt.TooLong) as error:
    prompt.prefix(fields, BYTES, most=size - 1)
  assert (error.value.tokens, error.value.room) == (size, size - 1)


class Counted(tokenizer_lib.Bytes):
  """Bytes that remember the sizes of what they encoded."""

  def __init__(self):
    self.sizes = []

  def encode(self, text):
    self.sizes.append(len(text))
    return super().encode(text)


def test_what_cannot_fit_is_not_encoded():
  tokenizer = Counted()
  format = chat.format_of(tokenizer)
  long, hi = 'x' * 10_000, prompt.Turn('user', 'Hi')
  told = card_fields.Lore(('hi',), long)

  def made(*turns, book=None):
    tokenizer.sizes.clear()
    return prompt.conversation(OPENED, turns, format, 500, book=book)

  for role in 'user', 'assistant':
    found = made(prompt.Turn(role, long), hi)
    assert found.dropped == 1 and max(tokenizer.sizes) <= len('Hi')
  found = made(hi, book=lore_lib.Book((told,), 'Ada'))
  assert _text(found.tokens) == _expected('u Hi')
  assert max(tokenizer.sizes) <= len('Hi')
  for turn in prompt.Turn('system', long), prompt.Turn('user', long):
    with pytest.raises(prompt.TooLong):
      made(turn)
    assert not tokenizer.sizes


def test_a_character_is_bounded_as_a_whole():
  fields = card_fields.Fields(name='A', description='é' * 300, scenario='x')
  whole = prompt.persona(fields)
  size = len(whole.replace('\n\n', '').encode())
  assert prompt.persona(fields, size) == whole
  with pytest.raises(macros.TooLarge):
    prompt.persona(fields, size - 1)


def test_a_conversation():
  made = _said('a Hello', 'u Hi\x03\r\n')
  assert _text(made.tokens) == _expected('a Hello', 'u Hi\n')
  assert (made.shared, made.dropped) == (1, 0)
  assert made.tokens.dtype == np.int32
  assert _text(_said().tokens) == _expected()


def test_the_users_name_stands_behind_what_all_share():
  prefix = prompt.prefix(ADA, BYTES)
  turns = [prompt.Turn('user', 'Hi')]
  made = [
    prompt.conversation(prefix, turns, BYTES, 5000, name)
    for name in ('Bo', 'Cy \n', '')
  ]
  for one in made:
    assert one.shared == len(prefix)
    np.testing.assert_array_equal(one.tokens[: one.shared], prefix)
  behind = [_text(one.tokens[one.shared :]) for one in made]
  said = '\x01user\x02Hi\x03\x01assistant\x02'
  named = "\x01system\x02User's name is {}.\x03" + said
  assert behind == [named.format('Bo'), named.format('Cy'), said]
  for name in (' ', 'x' * 201):
    with pytest.raises(ValueError, match=r'user_name=.*: must be 1…200'):
      _said('u Hi', user_name=name)


def test_drawn_tokens_are_taken_as_they_are():
  turns = [
    prompt.Turn('user', 'Hi'),
    prompt.Turn('assistant', 'x', (72, 105, 3)),
  ]
  made = prompt.conversation(OPENED, turns, BYTES, 500)
  assert _text(made.tokens) == _expected('u Hi', 'a Hi')
  turns[1] = prompt.Turn('assistant', 'x', ())
  made = prompt.conversation(OPENED, turns, BYTES, 500)
  assert _text(made.tokens) == _expected('u Hi', 'a ')


def test_a_full_history_drops_half_in_whole_exchanges():
  # Each message is 60 tokens; the opening is 11, bos is one.
  user, reply = 'u ' + 'x' * 53, 'a ' + 'x' * 48
  chat_of = [user, reply] * 9
  for exchanges, dropped in ((1, 0), (3, 0), (4, 4), (5, 4), (6, 8)):
    made = _said(*chat_of[: 2 * exchanges - 1], room=12 + 6 * 60)
    assert made.dropped == dropped, exchanges
    assert _text(made.tokens) == _expected(
      *chat_of[dropped : 2 * exchanges - 1]
    )


def test_what_opens_a_conversation_is_kept():
  user, reply = 'u ' + 'x' * 53, 'a ' + 'x' * 48
  made = _said('s Be kind.', *[user, reply] * 3, user, room=40 + 6 * 60)
  assert made.dropped == 4
  assert _text(made.tokens) == _expected('s Be kind.', user, reply, user)
  # Later ones belong to what follows them.
  made = _said('u a', 'a ' + 'x' * 90, 's b', 'u c', room=70)
  assert made.dropped == 2
  assert _text(made.tokens) == _expected('s b', 'u c')
  made = _said('u a', 'a ' + 'x' * 90, 's ' + 'y' * 30, 'u c', room=72)
  assert made.dropped == 2


def test_the_last_message_may_fill_all_and_no_more():
  room = 12 + 206
  message = 'u ' + 'x' * 200
  made = _said('u a', 'a b', message, room=room + 1)
  assert made.dropped == 2 and len(made.tokens) == room + 1 - 1 + 1
  with pytest.raises(prompt.TooLong) as error:
    _said('u a', 'a b', message + 'xx', room=room + 1)
  assert (error.value.tokens, error.value.room) == (209, 207)
  assert '209 tokens, and there is room for 207' in str(error.value)


def test_no_room_for_the_character():
  prefix = prompt.prefix(ADA, BYTES)
  with pytest.raises(prompt.TooLong, match=r'have \d+ tokens.*room for 100'):
    prompt.conversation(prefix, [prompt.Turn('user', 'a')], BYTES, 100)


def _chat(rng, count, words):
  """Yields the turns of a conversation up to each of the user's messages."""
  turns = [prompt.Turn('assistant', 'Hello.')]
  for _ in range(count):
    said = ' '.join(rng.choices(words, k=rng.randint(1, 12)))
    turns.append(prompt.Turn('user', said))
    reply = ' '.join(rng.choices(words, k=rng.randint(1, 25)))
    yield list(turns), reply
    turns.append(prompt.Turn('assistant', reply, tuple(reply.encode())))


@pytest.mark.parametrize('with_lore', [False, True])
def test_nearly_all_turns_begin_with_the_turn_before(with_lore):
  rng = random.Random(3)
  words = ['tea', 'milk', 'engine', 'rain', 'and', 'so', 'it', 'goes', 'on']
  lore = tuple(
    card_fields.Lore((word,), f'({word}){"." * 40}', order=rng.randrange(3))
    for word in words[:4]
  )
  depth = {'extensions': {'position': 4, 'depth': 3}}
  lore += (
    card_fields.Lore((), f'(deep){"." * 60}', is_constant=True, other=depth),
  )
  book = lore_lib.Book(lore, 'Ada') if with_lore else None
  prefix = prompt.prefix(ADA, BYTES)
  room = len(prefix) + 2000
  former, shared, dropped, sizes = None, 0, [0], []
  count = 250
  for turns, reply in _chat(rng, count, words):
    made = prompt.conversation(prefix, turns, ENCODED, room, 'Bo', book)
    assert len(made.tokens) <= room
    begins = _text(made.tokens)
    if former is not None:
      shared += begins.startswith(former)
      # A drop is the only reason why not, and it is never taken back.
      assert begins.startswith(former) == (made.dropped == dropped[-1])
      if made.dropped != dropped[-1]:
        sizes.append(len(made.tokens) - len(prefix))
        assert turns[made.dropped].role == 'user'
    dropped.append(made.dropped)
    for word in words[:4] if with_lore else ():
      kept = turns[made.dropped :]
      is_said = any(word in one.text.split() for one in kept)
      assert begins.count(f'\x02({word})') == is_said
    if with_lore:
      # The text of a depth is repeated, and never far from the end.
      begin = begins.rindex('\x02(deep)')
      assert begins[begin:].count('\x01') - 1 <= 2 * 3 + 4
    former = begins + reply
  assert dropped == sorted(dropped)
  # A turn has some 150 tokens, so that half of 2000 serves about seven.
  assert shared >= 0.8 * (count - 1)
  assert max(sizes) <= 1000 + 40
  # One exchange dropped per turn would shift all text in nearly every turn.
  assert len(set(dropped)) > 20


def test_lore_stands_behind_the_message_that_told_it_once():
  book = lore_lib.book(ADA)
  told = 's The engine runs on steam.'
  messages = ['u An engine?', 'a Yes.', 'u Engine!']
  made = _said(*messages, book=book)
  assert _text(made.tokens) == _expected(messages[0], told, *messages[1:])
  made = _said('u What?', 'a An engine.', 'u Hm', book=book)
  assert _text(made.tokens) == _expected(
    'u What?', 'a An engine.', 'u Hm', told
  )


def test_lore_takes_a_share_of_the_room_at_most():
  entries = [
    card_fields.Lore(('tea',), f'{n}' * 20, order=n) for n in range(9)
  ] + [card_fields.Lore(('tea',), 'x' * 400, order=-1)]
  book = lore_lib.Book(entries, 'Ada')
  for available, count in ((8 * 29 * 3 - 1, 2), (8 * 29 * 3, 3)):
    made = _said('u tea', room=12 + available, book=book)
    told = [f's {n}' + f'{n}' * 19 for n in range(count)]
    assert _text(made.tokens) == _expected('u tea', *told)
  # Eight at most, however much room there is.
  text = _text(_said('u tea', room=10**6, book=book).tokens)
  assert text.count('\x01system') == 8
  # What was not told is told later.
  text = _text(_said('u tea', 'a tea', 'u x', room=10**6, book=book).tokens)
  assert text.count('\x01system') == 10


def test_lore_that_was_kept_counts_in_later_turns():
  # 60 tokens per message, 49 of the lore, room for 400.
  book = lore_lib.Book([card_fields.Lore(('tea',), 'y' * 40)], 'Ada')
  user, reply, tea = 'u ' + 'x' * 53, 'a ' + 'x' * 48, 'u ' + 'tea' + '.' * 50
  messages = [user, reply] * 3 + [tea]
  made = _said(*messages, room=412, book=book)
  assert made.dropped == 6
  assert _text(made.tokens) == _expected(tea, 's ' + 'y' * 40)
  messages += [reply, user, reply, user, reply, 'u x']
  made = _said(*messages, room=412, book=book)
  assert made.dropped == 10
  assert _text(made.tokens) == _expected(user, reply, 'u x')


def test_what_is_remembered_is_what_is_encoded(tmp_path):
  bpe.train(tmp_path / 't.json', ['the cat sat on the mat ' * 20], 300)
  for tokenizer in ('', str(tmp_path / 't.json')):
    format = chat.format_of(tokenizer_lib.load(tokenizer))
    encoded = prompt.Encoded(format, most=100)
    rng = random.Random(0)
    for turns, _ in _chat(rng, 30, ['the', 'cat', 'sat\x03', '猫']):
      made = [
        prompt.conversation(prompt.open_prefix(one), turns, one, 2000, 'Bo')
        for one in (format, encoded)
      ]
      np.testing.assert_array_equal(made[0].tokens, made[1].tokens)
      assert made[0][1:] == made[1][1:]
    # Text whose bytes are those of a drawn token.
    drawn, said = (
      encoded.encode_drawn('user', [98]),
      encoded.message('user', 'b\0\0\0'),
    )
    assert list(drawn[-2:]) == [98, *format.message('user', '')[-1:]]
    np.testing.assert_array_equal(said, format.message('user', 'b'))
    kept = encoded.message('user', 'x')
    assert encoded.message('user', 'x') is kept
    for number in range(20):
      encoded.message('user', f'{number}' * 5)
    assert encoded.message('user', 'x') is not kept
    with pytest.raises(ValueError, match='read-only'):
      kept[0] = 0
    with pytest.raises(ValueError, match='surrogate'):
      encoded.message('user', '\ud800')
    with pytest.raises(ValueError, match="role='tool'"):
      encoded.message('tool', 'x')


def test_a_prompt_takes_few_milliseconds():
  rng = random.Random(0)
  lore = tuple(card_fields.Lore((f'key{n}',), 'told') for n in range(200))
  fields = card_fields.Fields('Ada', description='word ' * 1600, lore=lore)
  words = [f'word{n}' for n in range(300)]
  turns = [*_chat(rng, 100, words)][-1][0]
  spent = []
  for _ in range(4):
    begun = time.thread_time()
    prefix = prompt.prefix(fields, ENCODED)
    prompt.conversation(
      prefix, turns, ENCODED, 60_000, 'Bo', lore_lib.book(fields)
    )
    spent.append(time.thread_time() - begun)
  assert len(prefix) > 8000 and len(turns) == 200
  assert min(spent) < 0.05
