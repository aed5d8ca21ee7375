"""Cards as programs and people write them: what is not read refuses none."""

import copy
import json
import random

import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import card_png
from kaiju_jax.characters.cards import cards
from tests.characters.cards import png

ENTRY = {
  'keys': ['tea'],
  'secondary_keys': ['milk'],
  'selective': True,
  'content': 'Hot.',
  'enabled': True,
  'insertion_order': 3,
  'case_sensitive': False,
  'name': 'tea',
  'priority': 10,
  'id': 7,
  'comment': 'about tea',
  'position': 'after_char',
  'constant': False,
  'use_regex': True,
  'extensions': {'selectiveLogic': 0, 'probability': 100, 'depth': 4},
}
CARD = {
  'spec': 'chara_card_v3',
  'spec_version': '3.0',
  'create_date': '2024-1-2 @ 3h',
  'fav': False,
  'data': {
    'name': 'Ada',
    'nickname': 'A',
    'description': 'An engineer.',
    'personality': 'dry',
    'scenario': 'London',
    'first_mes': 'Hello.',
    'mes_example': '<START>',
    'system_prompt': 'Be brief.',
    'post_history_instructions': 'Be kind.',
    'alternate_greetings': ['Hm?'],
    'creator_notes': 'Enjoy.',
    'creator': 'Bo',
    'character_version': '1.1',
    'tags': ['a'],
    'creation_date': 1700000000,
    'modification_date': 1700000000.5,
    'source': ['a book'],
    'assets': [{'type': 'icon', 'name': 'main', 'ext': 'png'}],
    'group_only_greetings': ['All!'],
    'creator_notes_multilingual': {'de': 'Viel Freude.'},
    'extensions': {'world': 'w', 'talkativeness': '0.5'},
    'character_book': {
      'name': 'b',
      'description': 'd',
      'scan_depth': 2,
      'token_budget': 0,
      'recursive_scanning': False,
      'extensions': {},
      'entries': [ENTRY],
    },
  },
}
DATA = CARD['data']
# Fields that decide what prompts have.
READ = {
  *('data', 'name', 'nickname', 'description', 'personality', 'scenario'),
  *('first_mes', 'mes_example', 'system_prompt', 'alternate_greetings'),
  *('post_history_instructions', 'character_book', 'entries', 'keys'),
  *('content', 'secondary_keys', 'selective', 'enabled', 'constant'),
}
# Fields by which lore is told in another place, or not.
RULES = {
  *('insertion_order', 'case_sensitive', 'extensions', 'position', 'use_regex'),
  *('scan_depth', 'probability', 'selectiveLogic', 'depth'),
}
ODD = (
  *(None, True, False, 0, -1, 3, 1.5, 1e300, 2**70, '', 'x', 'a, b', ' \n'),
  *([], {}, [None], [[]], ['a', None, 3], [{}], {'0': 'a'}, {'a': {'b': [1]}}),
  *('x' * 300, '\ud800', ['x'] * 70, {str(n): n for n in range(100)}),
  'https://example.com/a.png',
)


def _read(card):
  return cards.read(json.dumps(card).encode())


def _paths(value, path=()):
  """Yields the path of each field."""
  if isinstance(value, dict):
    for name, inner in value.items():
      yield (*path, name)
      yield from _paths(inner, (*path, name))
  elif isinstance(value, list):
    for index, inner in enumerate(value):
      yield from _paths(inner, (*path, index))


def _at(value, path):
  for step in path:
    value = value[step]
  return value


def _put(card, path, value):
  changed = copy.deepcopy(card)
  _at(changed, path[:-1])[path[-1]] = value
  return changed


def _prompted(fields):
  """Returns what prompts read of fields, but for when lore is told."""
  data = card_fields.dump(fields)
  unread = 'creator', 'notes', 'tags', 'version_name', 'extensions', 'other'
  for name in unread:
    data.pop(name, None)
  for entry in data['lore']:
    for name in 'other', 'name', 'order':
      entry.pop(name, None)
  return data


def _returns(read):
  """Checks that what was read is equal after an export."""
  for spec in 'v2', 'v3':
    again = cards.read(cards.to_json(read.fields, spec))
    assert again.fields == read.fields
    assert not [note for note in again.notes if 'dropped' in note]


def test_no_value_of_a_field_that_no_prompt_reads_refuses_a_card():
  base = _prompted(_read(CARD).fields)
  count = 0
  for path in _paths(CARD):
    if path[-1] in READ:
      continue
    for value in ODD[count % 3 :: 3]:
      read = _read(_put(CARD, path, value))
      assert _prompted(read.fields) == base, (path, value)
      if count % 7 == 0:
        _returns(read)
      count += 1
  assert count > 200


def test_what_is_too_large_or_too_deep_is_dropped():
  base, nested = _prompted(_read(CARD).fields), 1
  for _ in range(32):
    nested = [nested]
  for path in _paths(CARD):
    if path[-1] in READ or isinstance(path[-1], int):
      continue
    for value in 'x' * 70_000, nested, {'a b': 'x' * 70_000, 'c': 1}:
      read = _read(_put(CARD, path, value))
      assert _prompted(read.fields) == base, path
      assert read.notes or path == ('spec_version',), path
      _returns(read)


def test_random_mess():
  """Several odd values at once: a card is refused for what is read alone."""
  rng = random.Random(1)
  paths, refused = list(_paths(CARD)), 0
  for _ in range(300):
    card = CARD
    for path in rng.sample(paths, 4):
      try:
        card = _put(card, path, rng.choice(ODD))
      except (TypeError, KeyError, IndexError):
        continue  # The field around it was replaced.
    try:
      _returns(_read(card))
    except cards.CardError as error:
      refused += 1
      assert error.fault in ('type', 'limit', 'nameless'), error
      assert any(name in str(error) for name in READ)
  assert 0 < refused < 100


def test_each_field_may_be_missing_or_null():
  for path in _paths(CARD):
    name = path[-1]
    if isinstance(name, int) or path == ('data', 'name'):
      continue
    without = copy.deepcopy(CARD)
    del _at(without, path[:-1])[name]
    if path == ('data',):
      without['name'] = 'Ada'
    missing = _read(without)
    null = _read(_put(without, path, None))
    assert _prompted(null.fields) == _prompted(missing.fields), path
    assert not null.notes or path == ('data',), (path, null.notes)
    _returns(null)


def test_what_has_no_field_here_is_exported_again():
  planted = copy.deepcopy(CARD)
  entries = planted['data']['character_book']['entries']
  entries.append(ENTRY | {'secondary_keys': []})
  entries.append(ENTRY | {'selective': False})
  places = [
    (),
    ('data',),
    ('data', 'extensions'),
    ('data', 'character_book'),
    ('data', 'character_book', 'extensions'),
    ('data', 'character_book', 'entries', 0),
    ('data', 'character_book', 'entries', 0, 'extensions'),
  ]
  other = {'list': [1, None, 'x', {'deep': [True]}], 'number': 0.5, 'ünd': ''}
  for place in places:
    _at(planted, place)['another program'] = other
  fields = _read(planted).fields
  for spec in 'v2', 'v3':
    made = json.loads(cards.to_json(fields, spec))
    for place in places:
      assert _at(made, place)['another program'] == other, place
    for path in _paths(planted):
      value = _at(planted, path)
      if not isinstance(value, (dict, list)) and 'spec' not in path[0]:
        assert _at(made, path) == value, path


PLAIN = {
  'a name as version': ({'character_version': 2}, {'version_name': '2'}),
  'tags as one text': ({'tags': 'a, b ,'}, {'tags': ('a', 'b')}),
  'many tags': (
    {'tags': [f't{n}' for n in range(65)]},
    {'tags': tuple(f't{n}' for n in range(64))},
  ),
  'numbers': (
    {'description': 3, 'creator': 1.5},
    {'description': '3', 'creator': '1.5'},
  ),
  'lines': ({'description': ['a', 'b']}, {'description': 'a\nb'}),
  'one greeting': (
    {'alternate_greetings': 'Hi, you.'},
    {'alternate_greetings': ('Hi, you.',)},
  ),
  'null greetings': ({'alternate_greetings': None}, {}),
  'no book': ({'character_book': []}, {}),
  'an empty book': ({'character_book': {}}, {}),
  'a long creator': ({'creator': 'x' * 300}, {'creator': 'x' * 200}),
  'half a character': ({'description': 'a\ud83d'}, {'description': 'a\ufffd'}),
}


@pytest.mark.parametrize('name', PLAIN)
def test_a_plain_meaning_is_read(name):
  data, wanted = PLAIN[name]
  fields = card_fields.Fields(**{'name': 'Ada', **wanted})
  assert _read({'name': 'Ada', **data}).fields == fields
  assert _read({'data': {'name': 'Ada', **data}}).fields == fields


@pytest.mark.parametrize('is_world', [False, True])
@pytest.mark.parametrize('as_object', [False, True])
def test_odd_entries(is_world, as_object):
  names = {'keys': 'key', 'secondary_keys': 'keysecondary'}
  names = names | {'insertion_order': 'order'} if is_world else {}
  entry = {
    'keys': 'tea, red tea',
    'secondary_keys': None,
    'insertion_order': None,
    'content': 7,
    'enabled': None,
    'constant': 'no',
  }
  entry = {names.get(name, name): value for name, value in entry.items()}
  entries = {'5': entry, '9': None} if as_object else [entry, None]
  read = _read({'name': 'A', 'character_book': {'entries': entries}})
  lore = card_fields.Lore(('tea', 'red tea'), '7')
  (found,) = read.fields.lore
  assert (found.keys, found.content) == (lore.keys, lore.content)
  assert (found.order, found.is_enabled, found.is_constant) == (0, True, False)
  _returns(read)


def test_a_book_that_is_a_list():
  read = _read({'name': 'A', 'character_book': [ENTRY]})
  assert read.fields.lore == _read(CARD).fields.lore
  assert read.notes == ('character_book: a list, read as its entries',)


def test_what_stands_around_the_data_fills_it():
  flat = {'name': 'Ada', 'first_mes': 'Hi', 'description': 'An engineer.'}
  wanted = card_fields.Fields('Ada', description='An engineer.', greeting='Hi')
  for card in (
    {'spec': 'chara_card_v2', **flat},
    {'spec': 'chara_card_v2', 'data': None, **flat},
    {'spec': 'chara_card_v2', 'data': {}, **flat},
    {'spec': 'chara_card_v9', 'data': flat},
    {'spec': 3, 'spec_version': None, 'data': flat, 'name': None},
    {'data': {'name': '', 'first_mes': None}, **flat},
  ):
    assert _read(card).fields == wanted, card
  # What is empty on purpose stays so.
  emptied = {'data': {'name': 'Ada', 'first_mes': ''}, **flat}
  assert _read(emptied).fields.greeting == ''


def test_the_older_text_of_a_png_is_read_where_the_newer_one_is_broken():
  broken = png.chunk(b'tEXt', b'ccv3\0bm90IGpzb24=')
  picture = png.png(broken, png.text(CARD))
  read = cards.read(picture)
  assert read.fields.name == 'Ada'
  assert any("'ccv3'" in note for note in read.notes)
  with pytest.raises(cards.CardError):
    cards.read(png.png(broken))
  assert card_png.texts(picture, ('ccv3', 'chara')).keys() == {'ccv3', 'chara'}


# What SillyTavern writes for an entry that uses none of its options.
WORLD = {
  'uid': 0,
  'key': ['tea'],
  'keysecondary': [],
  'comment': 'about tea',
  'content': 'Hot.',
  'constant': False,
  'vectorized': False,
  'selective': True,
  'selectiveLogic': 0,
  'addMemo': True,
  'order': 100,
  'position': 0,
  'disable': False,
  'ignoreBudget': False,
  'excludeRecursion': True,
  'preventRecursion': True,
  'matchPersonaDescription': False,
  'matchScenario': False,
  'delayUntilRecursion': False,
  'probability': 100,
  'useProbability': True,
  'depth': 4,
  'outletName': '',
  'group': '',
  'groupOverride': False,
  'groupWeight': 100,
  'scanDepth': None,
  'caseSensitive': None,
  'matchWholeWords': None,
  'useGroupScoring': None,
  'automationId': '',
  'role': None,
  'sticky': 0,
  'cooldown': 0,
  'delay': 0,
  'displayIndex': 0,
  'characterFilter': {'isExclude': False, 'names': [], 'tags': []},
  'triggers': [],
}


def test_an_entry_that_uses_no_option_has_no_note():
  extensions = {'depth_prompt': {'prompt': '', 'depth': 4, 'role': 'system'}}
  for entries in [WORLD], {'0': WORLD}:
    book = {'entries': entries}
    card = {'name': 'A', 'character_book': book, 'extensions': extensions}
    read = _read(card)
    assert read.notes == ()
    (lore,) = read.fields.lore
    assert (lore.keys, lore.order, lore.name) == (('tea',), 100, 'about tea')
    exported = json.loads(cards.to_json(read.fields))
    (entry,) = exported['data']['character_book']['entries']
    assert (entry['selective'], entry['secondary_keys']) == (True, [])
    _returns(read)


def test_what_is_not_supported_is_named_by_entry():
  entries = [
    ENTRY,
    {'keys': ['/a+/i'], 'content': 'x'},
    {'keys': ['a'], 'extensions': {'group': 'g', 'sticky': 2}},
    {'keys': ['a'], 'content': '@@is_greeting 1\n@@instruct_depth 3\nx'},
    {'keys': ['a'], 'extensions': {'delay_until_recursion': True}},
    {'constant': True, 'extensions': {'position': 4, 'depth': 2}},
    {'keys': ['a'], 'extensions': {'position': 6, 'selectiveLogic': 9}},
    {'keys': ['a'], 'extensions': {'probability': 'often', 'vectorized': True}},
  ]
  read = _read({'name': 'A', 'character_book': {'entries': entries}})
  wanted = {
    1: ['patterns (regex)'],
    2: ['group', 'sticky'],
    3: ['@@is_greeting', '@@instruct_depth'],
    4: ['delay_until_recursion'],
    5: ['0 to 4 messages'],
    6: ['position', 'selectiveLogic=9'],
    7: ['probability', 'vectorized'],
  }
  for index in range(len(entries)):
    notes = [x for x in read.notes if f'entries[{index}].' in x]
    assert len(notes) == len(wanted.get(index, ())), notes
    for word in wanted.get(index, ()):
      assert any(word in note for note in notes), (word, notes)
