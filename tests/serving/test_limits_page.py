"""docs/limits.md has the code's figures."""

import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import card_json
from kaiju_jax.characters.cards import card_png
from kaiju_jax.characters.prompts import history
from kaiju_jax.characters.prompts import lore
from kaiju_jax.characters.prompts import macros
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.serving.http import bodies
from kaiju_jax.serving.http import connection
from kaiju_jax.serving.http import limits
from kaiju_jax.serving.routes import characters
from kaiju_jax.serving.routes import context
from kaiju_jax.serving.routes import fields
from kaiju_jax.serving.routes import parse
from kaiju_jax.serving.routes import store
from kaiju_jax.serving.safety import gate
from kaiju_jax.serving.stores import character_rules
from kaiju_jax.serving.stores import sqlite_file
from tests import pages

OWNER, LOCAL, STORE = limits.Rate(), limits.LOCAL, character_rules.Limits()
HTTP = connection.Settings()


def mib(size):
  return f'{size / 2**20:,g} MiB'


ROWS = {
  "a request's body": [mib(bodies.MOST), mib(bodies.MOST_OF_CARD)],
  'values of a body': [
    *(bodies.VALUES, bodies.VALUES_OF_TOKENS, bodies.GROUPS),
  ],
  'a message that a session keeps': [macros.MOST],
  'messages of a chat': [fields.MESSAGES, fields.PARTS],
  'replies to one request': [fields.CHOICES],
  'alternatives': [parse.ALTERNATIVES],
  'stop strings': [fields.STOPS, fields.STOP_LENGTH],
  'new text that a gate': [gate.MOST],
  "a session's title": [STORE.title],
  'a card in JSON': [mib(card_json.BYTES), mib(card_png.BYTES), card_png.SIDE],
  'the card texts': [mib(card_png.TEXT), mib(card_png.TEXTS)],
  'a page of characters': [characters._PAGE, characters._PAGE_SIZE],
  'a name, a tag': [card_fields.NAME],
  'any other text': [card_fields.TEXT],
  '`extensions`, the': [card_fields.EXTENSIONS, card_fields.DEPTH],
  'all fields together': [card_fields.ALL],
  'alternate greetings': [card_fields.GREETINGS, card_fields.KEYS],
  'lore entries': [card_fields.LORE, card_fields.KEYS],
  'lore, all macros': [mib(lore._EXPANDED)],
  'the prefix': [prompt.PREFIX],
  'keys of all entries': [lore.PHRASES],
  'characters of a message that': [
    *(lore._SCANNED, lore._WORK // lore._SCANNED, lore._WORK),
  ],
  'lore that one message': [lore.TOLD, f'1/{history._LORE_SHARE}'],
  'requests per minute': [
    *(OWNER.requests, OWNER.burst, LOCAL.requests, LOCAL.burst),
  ],
  'bytes of bodies': [mib(OWNER.bytes), mib(LOCAL.bytes)],
  'tokens of prompts': [OWNER.tokens, LOCAL.tokens],
  'replies that are written': [OWNER.streams, LOCAL.streams],
  'characters; versions': [STORE.characters, STORE.versions],
  'sessions |': [STORE.sessions],
  'messages of a session; its': [STORE.messages, mib(STORE.size)],
  '`{{roll:d6}}`': [macros.DICE],
}
TEXT = [
  *(
    f'keeps {HTTP.connections} connections',
    f'within {HTTP.request_seconds:g}',
  ),
  f'ready while {mib(sqlite_file.ROOM)} more fit',
  f'longer than {context._SHORT:,} bytes',
  f'in {context._TEXTS} threads',
  f'in {store._THREADS}, of which an owner has {store._EACH}',
  f'does not read ends after {HTTP.unread_seconds:g}',
]


@pytest.mark.parametrize('row', ROWS)
def test_a_row_has_its_figures(row):
  page = pages.pages()['docs/limits.md']
  (line,) = [x for x in page.splitlines() if x.startswith(f'| {row}')]
  for value in ROWS[row]:
    shown = f'{value:,}' if isinstance(value, int) else value
    assert shown in line, (shown, line)


def test_the_text_has_its_figures():
  page = ' '.join(pages.pages()['docs/limits.md'].split())
  for text in TEXT:
    assert text in page, text
