"""The gate reads texts as they are shown and given to the model.

The marker 'zorbifex' stands for a violation. Macros put it together.
"""

import dataclasses
import json
import random
import urllib.error

import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import cards
from kaiju_jax.characters.prompts import lore
from kaiju_jax.characters.prompts import macros
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.serving.routes import judge
from tests.serving import running
from tests.serving.routes import moderated_cards

MARKER = moderated_cards.MARKER
# What becomes the marker, with the nickname 'ifex'.
SPELT = (
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


def _post(server, fields, **more):
  body = {'fields': card_fields.dump(fields)} | more
  return server.post('/v1/characters', 'ann', **body)['id']


def _refusal(call):
  with pytest.raises(urllib.error.HTTPError) as caught:
    call()
  error = json.loads(caught.value.read())['error']
  assert MARKER not in json.dumps(error)
  return caught.value.code, error['code']


def _planted(text):
  """Yields (where, fields) with a text in each string of the fields."""
  plain = card_fields.dump(FIELDS)
  for where, data in moderated_cards.planted(plain, text):
    if where != '.nickname':  # Another nickname spells another word.
      yield where, card_fields.parse(data)


@pytest.mark.parametrize('spelt', SPELT)
def test_no_text_passes_that_becomes_the_marker(server, spelt):
  places = list(_planted(spelt))
  assert len(places) > 20
  strings = set(judge.leaves(FIELDS)) - {'ifex'}
  found = {x for _, one in places for x in judge.leaves(one)}
  names = {'depth_prompt', 'prompt', 'depth', 'x', 'data', 'book', 'name'}
  names.add('group_only_greetings')
  assert {f'{one} {spelt}' for one in strings - names} <= found
  for where, fields in places:
    refusal = _refusal(lambda one=fields: _post(server, one))
    assert refusal == (400, 'content_filter'), where


def test_a_half_that_the_nickname_ends(server):
  """Others see the name in place of a nickname that they do not see."""
  fields = dataclasses.replace(
    FIELDS, name='ifex', nickname='I', notes='zorb{{char}}'
  )
  refusal = _refusal(lambda: _post(server, fields))
  assert refusal == (400, 'content_filter')


def _shown(fields):
  """Returns what the page and prompts have of a character."""
  found = [prompt.persona(fields), *lore.book(fields).texts.values()]
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
    text = ''.join(rng.choices(pieces, k=5))
    planted = dict(_planted(text))
    fields = planted['.lore[0].content' if n % 3 else rng.choice([*planted])]
    moderator.texts.clear()
    try:
      name = _post(server, fields)
    except urllib.error.HTTPError as error:
      assert error.code == 400
      continue
    published += 1
    read = '\n'.join(moderator.texts)
    for one in _shown(fields):
      assert one in read or not one.strip()
      assert MARKER not in one
    card = server.ask('GET', f'/v1/characters/{name}/card', None, 'ann')
    assert cards.read(json.dumps(card).encode()).fields == fields
  assert 20 < published < 60


def _open(server, name, **body):
  return server.post('/v1/sessions', 'ann', character=name, **body)


@pytest.mark.parametrize('is_public', [False, True])
def test_each_draw_of_a_greeting_is_read(server, moderator, is_public):
  halves = '{{random:zorb,a,quam}}{{random:ifex,c,lith}}'
  n, name = 0, None
  while name is None:  # The one draw that stands for all must pass.
    fields = dataclasses.replace(
      FIELDS,
      greeting=f'{n} {halves}',
      alternate_greetings=(f'Or {n} {halves}', 'Plain.', '{{roll:d6}}'),
    )
    try:
      name = _post(server, fields, public=is_public)
    except urllib.error.HTTPError as error:
      assert error.code == 400
      n += 1
  moderator.texts.clear()
  drawn = set()
  for index in range(80):
    greeting = index % 4
    made = _open(server, name, greeting=greeting)
    assert len(made['messages']) == 4 and made['head'] == greeting
    for message in made['messages']:
      assert MARKER not in message['text']
      is_read = message['text'] in moderator.texts
      # One that has a single draw was read with the card.
      assert is_read == (message['text'] != 'Plain.')
      drawn.add(message['text'])
  assert {f'{n} ac', f'{n} aifex', f'{n} alith', f'{n} quamc'} <= drawn
  # What minors may not read, nobody reads of a public character.
  assert any('quamlith' in text for text in drawn) != is_public
  # Draws that the gate blocks are drawn again.
  assert any(MARKER in text for text in moderator.texts)


def test_a_greeting_that_is_nearly_always_blocked_opens_no_session(server):
  bad = ','.join(['zorb{{// x}}ifex'] * 40)
  for n in range(200):
    greeting = f'{n} {{{{random:fine,{bad}}}}}'
    fields = dataclasses.replace(
      FIELDS, nickname='', greeting=greeting, alternate_greetings=()
    )
    if MARKER not in macros.expand_stable(greeting, fields.name):
      break
  name = _post(server, fields)
  before = len(server.get('/v1/sessions', owner='ann')['data'])
  refusal = _refusal(lambda: [_open(server, name) for _ in range(20)])
  assert refusal == (400, 'content_filter')
  sessions = server.get('/v1/sessions', owner='ann')['data']
  assert len(sessions) < before + 20


def test_no_greeting_is_shown_that_a_failing_gate_did_not_read(
  server, moderator
):
  fields = dataclasses.replace(FIELDS, greeting='{{random:a,b}} {{time}}')
  name = _post(server, fields)
  moderator.has_failed = True
  try:
    assert _refusal(lambda: _open(server, name))[0] == 503
  finally:
    moderator.has_failed = False
  assert _open(server, name)['messages']


def test_what_users_say_is_read_with_its_macros(server):
  fields = dataclasses.replace(FIELDS)
  session = _open(server, _post(server, fields))
  path = f'/v1/sessions/{session["id"]}/messages'
  for spelt in SPELT:
    body = {'role': 'user', 'text': f'Say {spelt}', 'parent': None}
    refusal = _refusal(lambda body=body: server.post(path, 'ann', **body))
    assert refusal == (400, 'content_filter'), spelt
    said = {'messages': [{'role': 'user', 'content': f'Say {spelt}'}]}
    answer = server.post(
      '/v1/chat/completions',
      'ann',
      model=running.MODEL,
      session=session['id'],
      max_tokens=1,
      **said,
    )
    assert answer['choices'][0]['finish_reason'] == 'content_filter', spelt


def test_each_session_draws_lore_of_its_own(server):
  extensions = {'probability': 50, 'useProbability': True}
  lore = card_fields.Lore(
    ('lamp',), 'A lamp.', other={'extensions': extensions}
  )
  name = _post(server, dataclasses.replace(FIELDS, lore=(lore,)))

  def tokens(session, **more):
    answer = server.post(
      '/v1/chat/completions',
      'ann',
      model=running.MODEL,
      session=session,
      max_tokens=1,
      **more,
    )
    return answer['usage']['prompt_tokens']

  said, found = {'messages': [{'role': 'user', 'content': 'A lamp?'}]}, set()
  for _ in range(16):
    session = _open(server, name)['id']
    first = tokens(session, **said)
    # Another reply to the same message has the same prompt.
    assert tokens(session, messages=[], swipe=True) == first
    found.add(first)
  assert len(found) == 2
