"""The gate reads texts as they are shown and given to the model.

The marker 'zorbifex' stands for a violation. Macros put it together.
"""

import copy
import dataclasses
import json
import random
import urllib.error

import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import cards
from kaiju_jax.characters.prompts import lore as lore_lib
from kaiju_jax.characters.prompts import macros
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.serving.routes import judge
from tests.serving import running
from tests.serving.routes import moderated_cards

MARKER, BLOCKED = moderated_cards.MARKER, moderated_cards.BLOCKED
CARDS, SESSIONS = running.CARDS, running.SESSIONS
# The marker, and what becomes it with the nickname 'ifex'.
SPELT = (
  MARKER,
  *('zorb{{char}}', 'zorb<BOT>', 'zorb{{// x }}ifex', 'zorb{{comment: x}}ifex'),
  *('{{reverse:xefibroz}}', '{{random:zorb{{char}}}}', 'zorb{{noop}}ifex'),
  *('zorb{{// secret {{random:a,b}} }}ifex', '{{random::zorb}}{{pick:ifex}}'),
  *('zor{{reverse:{{reverse:b}}}}{{ CHAR }}', 'zorb{{trim}}ifex'),
)
(LORE,) = moderated_cards.PLAIN.lore
FIELDS = dataclasses.replace(
  moderated_cards.PLAIN,
  lore=(dataclasses.replace(LORE, content='@@role user\nA lamp.'),),
  nickname='ifex',
  extensions={'depth_prompt': {'prompt': 'Be calm.', 'depth': 4}, 'x': ['y']},
  other={'data': {'group_only_greetings': ['Hi']}, 'book': {'name': 'b'}},
)

moderator = moderated_cards.moderator
server = moderated_cards.server
refused = moderated_cards.refused


def publish(server, public=False, **changes):
  """Returns the id of a new character, or None where it is refused."""
  fields = card_fields.dump(dataclasses.replace(FIELDS, **changes))
  try:
    return server.publish(fields, public=public)['id']
  except urllib.error.HTTPError as error:
    assert error.code == 400
    assert json.loads(error.read())['error']['code'] == 'content_filter'
    return None


def plant(value, text):
  """Yields (where, copy) with a text behind each string within a value."""
  if isinstance(value, str):
    yield '', f'{value} {text}'
  places = enumerate(value) if isinstance(value, list) else ()
  for place, each in value.items() if isinstance(value, dict) else places:
    for where, changed in plant(each, text):
      made = copy.copy(value)
      made[place] = changed
      yield f'.{place}{where}', made


def planted(text):
  """Yields (where, fields) with a text in each string of the fields."""
  for where, data in plant(card_fields.dump(FIELDS), text):
    if where != '.nickname':  # Another nickname spells another word.
      yield where, data


@pytest.mark.parametrize('spelt', SPELT)
def test_no_text_passes_that_becomes_the_marker(server, spelt):
  places = list(planted(spelt))
  assert len(places) > 20
  strings = set(judge.leaves(FIELDS)) - {'ifex'}
  found = {x for _, one in places for x in judge.leaves(one)}
  names = {'depth_prompt', 'prompt', 'depth', 'x', 'data', 'book', 'name'}
  names.add('group_only_greetings')
  assert {f'{one} {spelt}' for one in strings - names} <= found
  for where, fields in places:
    assert refused(server, 'POST', CARDS, {'fields': fields}) == BLOCKED, where


def test_a_half_that_the_nickname_ends(server):
  """Others see the name in place of a nickname that they do not see."""
  assert not publish(server, name='ifex', nickname='I', notes='zorb{{char}}')


def list_shown(fields):
  """Returns what the page and prompts have of a character."""
  found = [prompt.persona(fields), *lore_lib.book(fields).texts.values()]
  for text in judge.leaves(fields):
    for name in {fields.name, card_fields.display_name(fields)}:
      found.append(macros.expand_names(text, name))
  return found


def test_what_random_cards_show_was_read(server, moderator):
  rng = random.Random(0)
  pieces = (
    *('{{random:zorb,a}}', '{{random:ifex,b}}', '{{pick::zorb::ifex}}'),
    *('{{reverse:broz}}', '{{char}}', '{{// c}}', '{{roll:d6}}', ' '),
  )
  published = 0
  for n in range(60):
    cases = dict(planted(''.join(rng.choices(pieces, k=5))))
    where = '.lore.0.content' if n % 3 else rng.choice([*cases])
    fields = card_fields.parse(cases[where])
    moderator.texts.clear()
    name = publish(server, **vars(fields))
    if name is None:
      continue
    published += 1
    read = '\n'.join(moderator.texts)
    for one in list_shown(fields):
      assert one in read or not one.strip()
      assert MARKER not in one
    card = server.get(f'{CARDS}/{name}/card', owner='ann')
    assert cards.read(json.dumps(card).encode()).fields == fields
  assert 20 < published < 60


@pytest.mark.parametrize('public', [False, True])
def test_each_draw_of_a_greeting_is_read(server, moderator, public):
  halves = '{{random:zorb,a,quam}}{{random:ifex,c,lith}}'
  for n in range(100):  # The one draw that stands for all must pass.
    others = f'Or {n} {halves}', 'Plain.', '{{roll:d6}}'
    greetings = {'greeting': f'{n} {halves}', 'alternate_greetings': others}
    if name := publish(server, public, **greetings):
      break
  moderator.texts.clear()
  drawn = set()
  for index in range(80):
    session = server.open_session(character=name, greeting=index % 4)
    made = server.session(session)
    assert len(made['messages']) == 4 and made['head'] == index % 4
    for message in made['messages']:
      assert MARKER not in message['text']
      # One that has a single draw was read with the card.
      is_read = message['text'] in moderator.texts
      assert is_read == (message['text'] != 'Plain.')
      drawn.add(message['text'])
  assert {f'{n} ac', f'{n} aifex', f'{n} alith', f'{n} quamc'} <= drawn
  # What minors may not read, nobody reads of a public character.
  assert any('quamlith' in text for text in drawn) != public
  # Draws that the gate blocks are drawn again.
  assert any(MARKER in text for text in moderator.texts)


def test_a_greeting_that_is_nearly_always_blocked_opens_no_session(server):
  bad = ','.join(['zorb{{// x}}ifex'] * 40)
  greetings = (f'{n} {{{{random:fine,{bad}}}}}' for n in range(200))
  greeting = next(
    x for x in greetings if MARKER not in macros.expand_stable(x, FIELDS.name)
  )
  options = {'nickname': '', 'alternate_greetings': ()}
  body = {'character': publish(server, greeting=greeting, **options)}
  opened = 0
  while opened < 20:
    try:
      server.post(SESSIONS, 'ann', **body)
      opened += 1
    except urllib.error.HTTPError as error:
      assert error.code == 400
      break
  assert opened < 20
  listed = server.get(SESSIONS, owner='ann')['data']
  assert [one['character'] for one in listed].count(body['character']) == opened


def test_no_greeting_is_shown_that_a_failing_gate_did_not_read(
  server, moderator, monkeypatch
):
  name = publish(server, greeting='{{random:a,b}} {{time}}')
  with monkeypatch.context() as patch:
    patch.setattr(moderator, 'has_failed', True)
    assert refused(server, 'POST', SESSIONS, {'character': name})[0] == 503
  assert server.open_session(character=name)


def test_what_users_say_is_read_with_its_macros(server):
  session = server.open_session(character=publish(server))
  path = f'{SESSIONS}/{session}/messages'
  for spelt in SPELT:
    text = f'Say {spelt}'
    body = {'role': 'user', 'text': text, 'parent': None}
    assert refused(server, 'POST', path, body) == BLOCKED, spelt
    answer = server.chat(text, session=session)
    assert answer['choices'][0]['finish_reason'] == 'content_filter', spelt


def test_each_session_draws_lore_of_its_own(server):
  extensions = {'probability': 50, 'useProbability': True}
  lore = card_fields.Lore(
    ('lamp',), 'A lamp.', other={'extensions': extensions}
  )
  name, found = publish(server, lore=(lore,)), set()
  for _ in range(16):
    session = server.open_session(character=name)
    # Another reply to the same message has the same prompt.
    first, again = (
      server.chat(text, session=session, swipe=not text)['usage']
      for text in ('A lamp?', None)
    )
    assert first['prompt_tokens'] == again['prompt_tokens']
    found.add(first['prompt_tokens'])
  assert len(found) == 2
