"""Built-in characters are short, and written so that the model can answer."""

import re

import pytest

from kaiju_jax.characters.cards import builtin
from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data.dialogues import facts
from kaiju_jax.data.dialogues import vocabulary
from kaiju_jax.data.dialogues import words

FORMAT = chat.format_of(tokenizer_lib.Bytes())
_FACTS = [
  re.compile(
    re.escape(fact.statement)
    .replace(r'\{s\}', r'(?:\w+)')
    .replace(r'\{p\}', r"(?:[\w']+)")
    .replace(r'\{v\}', r'[^.]+')
  )
  for fact in facts.FACTS.values()
]

each = pytest.mark.parametrize(
  'fields', builtin.CHARACTERS, ids=lambda one: one.name
)


def test_they_are_several_and_differ():
  assert 4 <= len(builtin.CHARACTERS) <= 6
  for name in 'name', 'description', 'personality', 'greeting':
    values = {getattr(one, name) for one in builtin.CHARACTERS}
    assert len(values) == len(builtin.CHARACTERS)


@each
def test_a_server_takes_it_and_it_is_short(fields):
  card_fields.check(fields)
  assert len(prompt.prefix(fields, FORMAT)) <= 500
  for text in fields.description, fields.greeting, *fields.alternate_greetings:
    assert text.isascii() and text.isprintable()


@each
def test_it_is_described_as_the_dialogues_describe(fields):
  for sentence in re.findall(r'[^.]+\.', fields.description):
    assert any(form.fullmatch(sentence.strip()) for form in _FACTS), sentence
  manner, _ = fields.personality.split(',')
  assert manner in words.MANNERS
  catchword = re.search(r'Often says "(.+)"', fields.personality)
  assert catchword is None or catchword[1] in words.CATCHWORDS
  hello = words.MANNERS[manner]['hello']
  for greeting in fields.greeting, *fields.alternate_greetings:
    assert any(one in greeting for one in hello)
    assert f'I am {fields.name}.' in greeting
  assert fields.scenario == f'You meet {fields.name} at the ' + next(
    f'{place}.' for place in words.PLACES if f'{place}.' in fields.scenario
  )


@each
def test_its_words_are_ones_that_the_model_reads(fields):
  said = vocabulary.words_of(f'{fields.description} {fields.greeting}')
  unknown = {one for one in said if one not in vocabulary.list_words()}
  names = re.findall(
    r'called (\w+)|friend is (\w+)|from (\w+)', fields.description
  )
  allowed = {one.lower() for found in names for one in found if one}
  allowed |= {fields.name.lower()} | set(re.findall(r'\d+', fields.description))
  assert unknown <= allowed
