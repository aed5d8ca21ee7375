"""Lore of random cards and worlds, against a small reading of their meaning."""

import json
import random
import re

import pytest

from kaiju_jax.characters.cards import cards
from kaiju_jax.characters.prompts import lore as lore_lib
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib

BYTES = chat.format_of(tokenizer_lib.Bytes())
OPENED = prompt.open_prefix(BYTES)
ROLES = 'system', 'user', 'assistant'
KEYS = (
  *('tea', 'Tea', 'pot', 'été', 'ete', '猫', '🐉', '❤️', 'C++', 'Dr. Who'),
  *("{{char}}'s", 'red tea', '(oil)', '/and/or', 'a|b'),
)
SAID = (
  *('tea', 'TEA', 'teapot', 'pot', 'Été', 'ete', 'étés', '猫', '🐉', '❤'),
  *(
    'Dr. Who',
    'dr. whom',
    "Ada's",
    'red teas',
    '(oil)',
    '/and/or',
    'c++',
    'a|b',
  ),
)
LETTERS = 'A-Za-zÀ-ÖØ-öø-ÿ0-9_'
SAME = 'content', 'comment', 'constant', 'selective'


def _draw_entry(rng, number):
  """Returns an entry with a world's names."""

  def some(*values):
    return rng.choice([None, None, *values])

  keys = rng.sample(KEYS, rng.randint(0, 3))
  return {
    'uid': number,
    'key': keys,
    'keysecondary': rng.sample(KEYS, rng.randint(0, 2)),
    'content': f'<{number}>',
    'comment': '',
    'constant': rng.random() < 0.3,
    'selective': rng.random() < 0.7,
    'selectiveLogic': rng.randrange(4),
    'order': rng.choice([1, 2, 100]),
    'disable': rng.random() < 0.1,
    'probability': rng.choice([100, 100, 0]),
    'useProbability': rng.random() < 0.7,
    'position': rng.choice([0, 1, 4]),
    'depth': rng.randrange(4),
    'role': rng.randrange(3),
    'scanDepth': some(1, 2, 3, 0),
    'caseSensitive': some(True, False),
    'matchWholeWords': some(True, False),
    'delay': some(2, 5),
  }


def _draw_depth_prompt(rng):
  """Returns a card's extensions, and the entry that means the same."""
  depth, role = rng.choice([None, 0, 1, 3]), rng.choice([None, 0, 1, 2])
  within = {'prompt': '<9>', 'depth': depth}
  within['role'] = None if role is None else ROLES[role]
  entry = {
    **_draw_entry(rng, 9),
    'constant': True,
    'order': 0,
    'disable': False,
    'position': 4,
    'useProbability': False,
    'delay': None,
    'role': role or 0,
    'depth': 4 if depth is None else depth,
  }
  return {'depth_prompt': within}, entry


def _of_card(entry):
  """Returns a world's entry as SillyTavern writes it into a card."""
  extensions = {
    name: entry[name]
    for name in ('selectiveLogic', 'probability', 'useProbability', 'position')
  }
  for name in 'depth', 'role', 'scanDepth', 'caseSensitive', 'delay':
    snake = re.sub('[A-Z]', lambda found: '_' + found[0].lower(), name)
    extensions[snake] = entry[name]
  extensions['match_whole_words'] = entry['matchWholeWords']
  same = {name: entry[name] for name in SAME}
  return same | {
    'id': entry['uid'],
    'keys': entry['key'],
    'secondary_keys': entry['keysecondary'],
    'insertion_order': entry['order'],
    'enabled': not entry['disable'],
    'position': 'before_char' if entry['position'] == 0 else 'after_char',
    'use_regex': True,
    'extensions': extensions,
  }


def _fields(entries, **card):
  """Returns the fields of a card with a book of these entries."""
  card |= {'name': 'Ada', 'character_book': {'entries': entries}}
  return cards.read(json.dumps(card).encode()).fields


def _has(key, texts, entry):
  key = key.replace('{{char}}', 'Ada').replace('\ufe0f', '')
  text = '\n'.join(texts)
  if not entry['caseSensitive']:
    key, text = key.casefold(), text.casefold()
  if ' ' in key or entry['matchWholeWords'] is False:
    return key in text
  before = f'(?<![{LETTERS}])' if re.match(f'[{LETTERS}]', key) else ''
  after = f'(?![{LETTERS}])' if re.search(f'[{LETTERS}]$', key) else ''
  return re.search(before + re.escape(key) + after, text) is not None


def _holds(entry, texts, count):
  """Whether an entry belongs behind the last of `count` messages."""
  if entry['useProbability'] and entry['probability'] == 0:
    return False
  if count < (entry['delay'] or 0):
    return False
  if entry['constant']:
    return True
  depth = 2 if entry['scanDepth'] is None else entry['scanDepth']
  texts = texts[max(0, count - depth) : count]
  if not any(_has(key, texts, entry) for key in entry['key']):
    return False
  if not entry['selective'] or not entry['keysecondary']:
    return True
  have = [_has(key, texts, entry) for key in entry['keysecondary']]
  return (any(have), not all(have), not any(have), all(have))[
    entry['selectiveLogic']
  ]


def _expect(entries, messages):
  """Returns the numbers in the prefix, and messages with lore among them."""
  entries = [x for x in entries if not x['disable']]
  entries.sort(key=lambda x: x['order'])
  texts, prefix, told, made = [text for _, text in messages], [], {}, []

  def tell(entry, at):
    told[entry['uid']] = at
    role = ROLES[entry['role']] if entry['position'] == 4 else 'system'
    made.append((role, entry['content']))

  within = []
  for one in entries:
    is_at_depth = one['position'] == 4
    is_certain = not one['useProbability'] or one['probability'] == 100
    is_always = one['constant'] and is_certain and not one['delay']
    if is_always and not is_at_depth:
      prefix.append(one['uid'])
      continue
    within.append(one)
    if is_always and one['depth']:
      tell(one, -1)
  for n, message in enumerate(messages):
    made.append(message)
    for one in within if message[0] == 'user' else ():
      at = told.get(one['uid'])
      if at is not None:
        moves = one['constant'] and one['position'] == 4
        if not moves or n - at <= 2 * one['depth']:
          continue
      if _holds(one, texts, n + 1):
        tell(one, n)
  return prefix, made


def _shown(made):
  return bytes(made.tokens.tolist()).decode()


@pytest.mark.parametrize('is_world', [False, True])
def test_the_meaning_of_random_lore(is_world):
  rng = random.Random(is_world)
  count = 0
  for _ in range(100):
    entries = [_draw_entry(rng, n) for n in range(rng.randint(1, 6))]
    if is_world:
      book = {'entries': {str(x['uid']): x for x in entries}}
    else:
      book = {'entries': list(map(_of_card, entries))}
    card = {'name': 'Ada', 'character_book': book}
    if rng.random() < 0.3:
      card['extensions'], within = _draw_depth_prompt(rng)
      entries.append(within)
    fields = cards.read(json.dumps(card).encode()).fields
    fields = cards.read(cards.to_json(fields)).fields
    messages = []
    for n in range(rng.randint(1, 9)):
      words = rng.choices(SAID, k=rng.randint(1, 5))
      text = ''.join(x + rng.choice([' ', ', ', '. ', '\n']) for x in words)
      messages.append(('user' if n % 2 else 'assistant', text.strip()))
    prefix, expected = _expect(entries, messages)
    turns = [prompt.Turn(*one) for one in messages]
    made = prompt.conversation(
      OPENED, turns, BYTES, 10**6, book=lore_lib.book(fields)
    )
    plain = prompt.conversation(
      OPENED, [prompt.Turn(*one) for one in expected], BYTES, 10**6
    )
    shown, wanted = _shown(made), _shown(plain)
    assert shown == wanted, json.dumps([entries, messages])
    shown = re.findall(r'<(\d)>', prompt.persona(fields))
    assert sorted(map(int, shown)) == sorted(prefix)
    count += len(expected) - len(messages)
  assert count > 60


def test_the_positions_of_constant_lore():
  contents = (
    ('before', 0),
    ('after', 1),
    ('@@position after_desc\nbehind', 0),
    ('@@position scenario\nthere', 0),
    ('@@position personality\nthus', 0),
  )
  entries = [
    {'key': [], 'content': text, 'constant': True, 'position': place}
    for text, place in contents
  ]
  fields = _fields(entries, description='A.', personality='B', scenario='C')
  assert prompt.persona(fields).split('\n\n')[1:] == [
    *('before', 'A.', 'behind', 'Personality: B', 'thus', 'Scenario: C'),
    *('there', 'after'),
  ]


def _draws(entries, turns, seed):
  """Returns the texts of lore in a prompt, in their order."""
  book = lore_lib.book(_fields(entries))
  made = prompt.conversation(OPENED, turns, BYTES, 10**6, book=book, seed=seed)
  return re.findall(r'<\w>', _shown(made))


def test_chance_depends_on_the_session_the_entry_and_the_turn():
  def entry(name, **more):
    extensions = {'probability': 50, 'useProbability': True, **more}
    return {'keys': ['tea'], 'content': name, 'extensions': extensions}

  turns = [prompt.Turn('user', 'tea')]
  pair = [entry('<a>'), entry('<b>')]
  drawn = {str(n): _draws(pair, turns, str(n)) for n in range(200)}
  found = sorted({''.join(one) for one in drawn.values()})
  assert found == ['', '<a>', '<a><b>', '<b>']
  assert 70 < sum('<a>' in one for one in drawn.values()) < 130
  assert all(_draws(pair, turns, n) == drawn[n] for n in list(drawn)[:20])
  # One that a turn does not draw, another turn draws anew.
  again = [prompt.Turn('user', 'tea'), prompt.Turn('assistant', 'x'), turns[0]]
  longer = {n: _draws(pair[:1], again, n) for n in drawn}
  assert {len(one) for one in longer.values()} == {0, 1}
  assert sum(map(len, longer.values())) > 130
  # What an earlier turn drew stays.
  assert all(longer[n] for n in drawn if '<a>' in drawn[n])
  # An edited message has a draw of its own.
  other = {n: _draws(pair, [prompt.Turn('user', 'tea!')], n) for n in drawn}
  assert other != drawn


DECORATED = {
  '': [True, True, True],
  '@@dont_activate_after_match\n': [True, False, False],
  '@@activate_only_after 1\n': [False, True, True],
  '@@activate_only_every 2\n': [True, False, True],
  '@@dont_activate\n': [False, False, False],
  '@@exclude_keys milk, oil\n': [True, False, True],
  '@@additional_keys milk\n': [False, True, False],
  '@@scan_depth 0\n': [False, False, False],
  '@@unknown 3\n@@@exclude_keys milk\n': [True, False, True],
  '@@exclude_keys oil\n@@@exclude_keys milk\n': [True, True, True],
}


@pytest.mark.parametrize('head', DECORATED)
def test_decorators(head):
  """Whether an entry is told behind each message, were it not told before."""
  entry = {'keys': ['tea'], 'content': f'{head}<x>'}
  card = {'name': 'Ada', 'character_book': {'entries': [entry]}}
  read = cards.read(json.dumps(card).encode())
  book = lore_lib.book(read.fields)
  turns = [
    *(prompt.Turn('user', 'tea'), prompt.Turn('assistant', 'Hm')),
    *(prompt.Turn('user', 'tea and milk'), prompt.Turn('assistant', 'Hm')),
    prompt.Turn('user', 'tea'),
  ]
  found = book.find_all(turns)[::2]
  assert [bool(one) for one in found] == DECORATED[head]
  assert set(book.texts.values()) <= {'<x>'}
  assert any('@@unknown' in note for note in read.notes) == ('@@unk' in head)


@pytest.mark.parametrize(
  'logic, keys, texts',
  [
    (0, ['/x/', 'milk'], ['tea, milk']),  # Any of them.
    (1, ['/x/', 'milk'], ['tea', 'tea, /and/or']),  # Not all of them.
    (2, ['/x/', 'milk'], []),  # None of them.
    (3, ['/x/', 'milk'], []),  # All of them.
    *((logic, ['/x/i'], []) for logic in range(4)),
    (3, ['/x/ii', 'milk'], []),
    (0, ['/and/or', 'x/'], ['tea, /and/or']),
  ],
)
def test_a_pattern_holds_nowhere(logic, keys, texts):
  entry = {'keys': ['/t/', 'tea'], 'secondary_keys': keys, 'selective': True}
  entry |= {'content': 'x', 'extensions': {'selectiveLogic': logic}}
  book = lore_lib.book(_fields([entry]))
  asked = 'tea', 'tea, milk', 'tea, /and/or', '/t/', 'x milk'
  told = [
    one for one in asked if any(book.find_all([prompt.Turn('user', one)]))
  ]
  assert told == texts
