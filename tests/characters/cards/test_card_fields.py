"""A character's fields: canonical text within limits, errors by name."""

import dataclasses
import json
import random

import pytest

from kaiju_jax.characters.cards import card_fields
from tests.serving import random_fields

ADA = card_fields.Fields(name='Ada')


def _wrong(**changed):
  return dataclasses.replace(ADA, **changed)


def _lore(**changed):
  lore = dataclasses.replace(card_fields.Lore(('tea',), 'hot'), **changed)
  return _wrong(lore=(card_fields.Lore(('a',), 'b'), lore))


def _nested(levels):
  value = 0
  for _ in range(levels):
    value = [value]
  return value


REFUSED = [
  (_wrong(name=''), 'nameless', "name=''"),
  (_wrong(name=' Ada'), 'control', "name=' Ada'"),
  (_wrong(name='A\nda'), 'control', r"name='A\\nda'"),
  (_wrong(name='x' * 201), 'limit', 'name has 201 .*200'),
  (_wrong(name=3), 'type', 'name=3'),
  (_wrong(greeting=None), 'type', 'greeting=None'),
  (_wrong(greeting='\x07'), 'control', r"greeting='\\x07'"),
  (_wrong(scenario='x' * 65_537), 'limit', 'scenario has 65,537 .*65,536'),
  (_wrong(notes='ab\ud800'), 'surrogate', r"surrogate '\\ud800'"),
  (_wrong(tags=['a']), 'type', r'tags=\(list\)'),
  (_wrong(tags=('a\u200b', '')), 'limit', r"tags\[1\]=''"),
  (_wrong(tags=('a', 3)), 'type', r'tags\[1\]=3'),
  (_wrong(tags=('a',) * 65), 'limit', 'tags has 65 .*64'),
  (_wrong(alternate_greetings=('', 3)), 'type', r'greetings\[1\]=3'),
  (_wrong(lore=('a',)), 'type', r"lore\[0\]='a'"),
  (_wrong(lore=(card_fields.Lore(),) * 501), 'limit', 'lore has 501 .*500'),
  (_lore(keys=('a', '')), 'limit', r"lore\[1\].keys\[1\]=''"),
  (_lore(keys=(' a',)), 'control', r"lore\[1\].keys\[0\]=' a'"),
  (_lore(is_constant=1), 'type', r'lore\[1\].is_constant=1'),
  (_lore(order=True), 'type', r'lore\[1\].order=True'),
  (_lore(order=2**31), 'limit', r'lore\[1\].order=2147483648'),
  (_wrong(extensions=3), 'type', 'extensions=3'),
  (_wrong(extensions={'a': _nested(32)}), 'limit', 'deeper than 32'),
  (_wrong(extensions={3: 4}), 'type', 'must be plain JSON'),
  (_wrong(extensions={'a': float('nan')}), 'type', 'must be plain JSON'),
  (_wrong(extensions={'a': 'x' * 65_536}), 'limit', '65,545 characters'),
  (
    _wrong(extensions={'a': {'regex_scripts': [{}]}}),
    'executes',
    'extensions.a.regex_scripts',
  ),
  (
    _wrong(alternate_greetings=('x' * 60_000,) * 9),
    'limit',
    '540,.* bytes of JSON: at most 524,288',
  ),
]


@pytest.mark.parametrize('fields, fault, message', REFUSED)
def test_a_wrong_field_is_named(fields, fault, message):
  with pytest.raises(card_fields.FieldError, match=message) as error:
    card_fields.check(fields)
  assert error.value.fault == fault
  assert error.value.field in str(error.value) or fault == 'executes'
  assert len(str(error.value)) < 300


def test_what_is_at_the_limit_passes():
  card_fields.check(
    _wrong(
      name='x' * 200,
      scenario='x' * 65_536,
      tags=('a',) * 64,
      lore=(card_fields.Lore(),) * 500,
      extensions={'a': _nested(31)},
    )
  )


def test_plain_data_and_back():
  rng = random.Random(1)
  for _ in range(100):
    fields = random_fields.draw(rng)
    card_fields.check(fields)
    data = json.loads(json.dumps(card_fields.dump(fields)))
    assert card_fields.parse(data) == fields


def test_what_a_form_sends_becomes_canonical():
  fields = card_fields.parse(
    {
      'name': ' Ada\n',
      'greeting': 'a\r\nb\x00',
      'tags': ['x '],
      'lore': [{'keys': [' tea\n pot '], 'content': 'hot\r'}],
    }
  )
  assert fields == card_fields.Fields(
    name='Ada',
    greeting='a\nb',
    tags=('x',),
    lore=(card_fields.Lore(('tea  pot',), 'hot\n'),),
  )


@pytest.mark.parametrize(
  'data, message',
  [
    ([], r'fields=\(list\)'),
    ({}, 'needs a name'),
    ({'nmae': 'Ada'}, "'nmae': no such field. Did you mean name"),
    ({'name': 'A', 'tags': 'a'}, "tags='a'"),
    ({'name': 'A', 'lore': [3]}, r'lore\[0\]=3'),
    ({'name': 'A', 'lore': [{'key': 'a'}]}, r"lore\[0\] holds 'key'"),
    ({'name': 'A', 'lore': [{'keys': 'a'}]}, r"lore\[0\].keys='a'"),
    ({'name': 'A', 'greeting': 'x\ud800'}, 'greeting holds the surrogate'),
  ],
)
def test_plain_data_that_is_wrong(data, message):
  with pytest.raises(card_fields.FieldError, match=message):
    card_fields.parse(data)
