"""Invented dialogues: what is said is true, clean, new and repeatable."""

import re

import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.data import chat
from kaiju_jax.data.dialogues import facts
from kaiju_jax.data.dialogues import personas
from kaiju_jax.data.dialogues import talk
from kaiju_jax.data.dialogues import vocabulary
from kaiju_jax.data.dialogues import words

TOMA = personas.Persona(
  name='Toma',
  pronoun='He',
  manner='grumpy',
  trait='loyal',
  catchword='Moo!',
  place='harbour',
  facts={'pet': 'an old cat called Salta', 'food': 'plum cake', 'age': '71'},
)


def size(role, text):
  return len(chat.text_of([(role, text)]).encode())


def drawn(number, seed=0):
  rng = np.random.default_rng((seed, number))
  persona = personas.draw(rng)
  return persona, talk.dialogue(rng, persona, 900, size)


@pytest.fixture(scope='module')
def many():
  return [drawn(number) for number in range(200)]


def test_a_persona_reads_as_a_person_would_write_it():
  assert TOMA.description == (
    'Toma has an old cat called Salta. His favourite food is plum cake. He is'
    ' 71 years old.'
  )
  assert TOMA.personality == 'grumpy, loyal. Often says "Moo!"'
  assert TOMA.scenario == 'You meet Toma at the harbour.'
  assert TOMA.answer('pet') == 'I have an old cat called Salta.'


def test_the_seed_decides_and_nothing_comes_twice(many):
  assert drawn(7) == many[7] != drawn(7, seed=1)
  descriptions = {persona.description for persona, _ in many}
  assert len(descriptions) == len(many)


def test_messages_follow_each_other_in_preorder_and_take_turns(many):
  for _, nodes in many:
    visibility.tree([node.parent for node in nodes])  # Refuses other orders.
    assert [node.parent for node in nodes].count(-1) == 1
    for node in nodes[1:]:
      assert node.role != nodes[node.parent].role
    assert nodes[0].role == talk.ASSISTANT
    # Only exchanges that are whole.
    parents = {node.parent for node in nodes}
    for index, node in enumerate(nodes):
      assert node.role == talk.ASSISTANT or index in parents


def test_a_dialogue_fits_and_fills_its_room(many):
  taken = [sum(size(*node[1:]) for node in nodes) for _, nodes in many]
  assert max(taken) <= 900
  assert min(taken) > 700


def test_without_a_greeting_the_user_begins():
  rng = np.random.default_rng(0)
  nodes = talk.dialogue(rng, TOMA, 600, size, greeted=False)
  assert {one.role for one in nodes if one.parent == -1} == {talk.USER}


def test_what_a_character_says_of_itself_is_its_description(many):
  """No statement about oneself but those of the facts, and the right ones."""
  values = {'pet': r'(an? [^.]+)'}
  forms = {
    kind: re.compile(
      r'\b'
      + re.escape(fact.answer).replace(r'\{v\}', values.get(kind, r'([^.]+)'))
    )
    for kind, fact in facts.FACTS.items()
    if kind in ('home', 'pet', 'food', 'age', 'friend', 'fear', 'colour')
  }
  count = 0
  for persona, nodes in many:
    missing = {facts.FACTS[kind].missing[0] for kind in facts.FACTS}
    for node in nodes:
      if node.role == talk.USER or any(m in node.text for m in missing):
        continue
      for kind, form in forms.items():
        for said in form.findall(node.text):
          assert said == persona.facts[kind], node
          count += 1
  assert count > 300


def test_questions_for_facts_are_answered(many):
  kinds = {
    question.lower().rstrip('?.'): kind
    for kind, fact in facts.FACTS.items()
    for question in fact.questions
  }
  seen = 0
  for persona, nodes in many:
    for index, node in enumerate(nodes):
      kind = kinds.get(node.text.lower().rstrip('?.!'))
      if node.role == talk.ASSISTANT or kind is None:
        continue
      fact = facts.FACTS[kind]
      right = persona.answer(kind) if kind in persona.facts else fact.missing[0]
      answer = nodes[index + 1].text
      assert right[1:] in answer, (node, answer)
      seen += 1
  assert seen > 300


def test_who_told_a_name_is_called_by_it(many):
  told = 0
  for _, nodes in many:
    for node in nodes:
      if not node.text.endswith(tuple(f' {n}.' for n in words.NAMES)):
        continue
      if 'You are ' not in node.text:
        continue
      path, at = [], node
      while at.parent >= 0:
        at = nodes[at.parent]
        path.append(at.text.lower())
      name = node.text.split()[-1].rstrip('.').lower()
      assert any(name in one for one in path), node
      told += 1
  assert told


def test_what_is_kept_for_evaluation_is_in_no_dialogue(many):
  lists = {
    'work': words.JOBS,
    'likes': words.LIKES,
    'hobby': words.HOBBIES,
    'fear': words.FEARS,
    'dream': words.DREAMS,
    'colour': words.COLOURS,
  }
  kept = {
    personas.phrasings(kind, unseen=True)[0].lower().rstrip('?.')
    for kind in facts.FACTS
  }
  for persona, nodes in many:
    for kind, values in lists.items():
      assert persona.facts.get(kind) not in values[-personas.UNSEEN :]
    for node in nodes:
      assert node.text.lower().rstrip('?.!') not in kept
  fresh = personas.draw(np.random.default_rng(0), fresh=True)
  for kind, values in lists.items():
    value = fresh.facts.get(kind)
    assert value is None or value in values[-personas.UNSEEN :]


def test_messages_are_plain_and_short(many):
  for persona, nodes in many:
    for text in (persona.description, *(node.text for node in nodes)):
      assert text.isascii() and text.isprintable() and '{' not in text
      assert text == text.strip() and '  ' not in text
    for node in nodes:
      assert 0 < len(node.text) <= 150


def test_the_vocabulary_is_all_that_dialogues_say(many):
  """Beside names, which begin with a capital wherever a character says them."""
  for persona, nodes in many:
    said = [node.text for node in nodes if node.role == talk.ASSISTANT]
    said += [persona.description, persona.personality, persona.scenario]
    for word in re.findall(r"[\w']+", ' '.join(said)):
      known = word.lower().strip("'") in vocabulary.list_words()
      name = word[0].isupper() and word.removesuffix("'s")[1:].islower()
      assert known or name or word.isdigit(), word


def test_users_type_as_they_like_and_say_the_same():
  rng = np.random.default_rng(0)
  typed = {talk.type_like_user(rng, "What's up?") for _ in range(100)}
  assert typed == {"What's up?", "what's up?", 'whats up', 'Whats up'}


def test_mixed_values_have_the_form_of_others_and_cannot_be_guessed():
  values = {kind: set() for kind in facts.FACTS}
  for number in range(300):
    rng = np.random.default_rng(number)
    persona = personas.draw(rng, mixed=True)
    for kind, value in persona.facts.items():
      values[kind].add(value)
      assert value in persona.description and value in persona.answer(kind)
      assert not re.search(r'\b(a [aeiou]|an [^aeiou])', value), value
  assert all(value.startswith(('a ', 'an ')) for value in values['pet'])
  assert all(' called ' in value for value in values['pet'])
  # Forty jobs are known; with these, few come twice.
  jobs = values['work'] - set(words.JOBS)
  assert len(jobs) > 120
  unseen = {one.split()[-1] for one in words.JOBS[-personas.UNSEEN :]}
  assert not unseen & {word for one in jobs for word in one.split()}
