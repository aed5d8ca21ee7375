"""Defines the kinds of facts about a character and the questions for them.

A fact's answer repeats its statement's words, so that it can be copied from the
description. The last phrasing of each question is kept for evaluation.
"""

from typing import NamedTuple


class Fact(NamedTuple):
  """One kind of fact about a character; {v} stands for the value."""

  # Its sentence in the description; {s} is the name or a pronoun, {p} its
  # possessive.
  statement: str
  answer: str  # The same in the character's own words.
  questions: tuple[str, ...]  # The questions that users ask for it.
  missing: tuple[str, ...]  # Answers of a character that has no such fact.


FACTS = {
  'work': Fact(
    '{s} is {v}.', 'I am {v}.',
    ('What do you do?', "What's your job?", 'What is your job?',
     'What are you?', 'What do you do for work?',
     'What kind of work do you do?', 'Do you have a job?',
     'And what do you do?', 'What do you do for a living?'),
    ('I do a little of this and that.',),
  ),
  'home': Fact(
    '{s} lives in {v}.', 'I live in {v}.',
    ('Where do you live?', 'Where is your home?', "Where's your house?",
     'Where do you sleep at night?', 'What is your home like?',
     'So where do you live?', 'Do you live near here?',
     'Tell me about your home.', 'Can you tell me where you live?'),
    ('I live here and there.',),
  ),
  'age': Fact(
    '{s} is {v} years old.', 'I am {v} years old.',
    ('How old are you?', 'What is your age?', "What's your age?",
     'May I ask how old you are?', 'And how old are you?', 'Are you old?',
     'Can you tell me your age?'),
    ('I do not count the years.',),
  ),
  'origin': Fact(
    '{s} comes from {v}.', 'I come from {v}.',
    ('Where are you from?', 'Where do you come from?', 'Where were you born?',
     'So where are you from?', 'Which town are you from?',
     'What place do you come from?'),
    ('I come from far away.',),
  ),
  'food': Fact(
    '{p} favourite food is {v}.', 'My favourite food is {v}.',
    ('What is your favourite food?', "What's your favorite food?",
     'What do you like to eat?', 'What do you eat?', 'Are you hungry?',
     'Which food do you like?', 'What food do you like best?'),
    ('I eat what there is.',),
  ),
  'colour': Fact(
    '{p} favourite colour is {v}.', 'My favourite colour is {v}.',
    ('What is your favourite colour?', "What's your favorite color?",
     'Which colour do you like?', 'What color do you like?',
     'Do you have a favourite colour?', 'Which color do you like best?'),
    ('I like all colours.',),
  ),
  'likes': Fact(
    '{s} loves {v}.', 'I love {v}.',
    ('What do you like?', 'What do you love?', 'What makes you happy?',
     'What things do you like?', 'Is there something you love?',
     'What do you like most?', 'What are you fond of?',
     'What do you like best?'),
    ('I like many things.',),
  ),
  'hobby': Fact(
    '{s} likes to {v}.', 'I like to {v}.',
    ('What do you do for fun?', 'What are your hobbies?',
     'Do you have a hobby?', 'Any hobbies?',
     'What do you do in your free time?', 'What do you do all day?',
     'What do you like to do?', 'What do you enjoy doing?'),
    ('I like to sit and think.',),
  ),
  'pet': Fact(
    '{s} has {v}.', 'I have {v}.',
    ('Do you have a pet?', 'Do you have any pets?', 'Any pets?',
     'Do you have an animal?', 'Have you got a pet?', 'Tell me about your pet.',
     'What is your pet called?', 'Do you live with an animal?'),
    ('I have no pet.',),
  ),
  'fear': Fact(
    '{s} is afraid of {v}.', 'I am afraid of {v}.',
    ('What are you afraid of?', 'Are you afraid of something?',
     'What scares you?', 'What is your biggest fear?',
     'Is there something you fear?', 'What do you fear?',
     'Does anything scare you?'),
    ('I am not afraid of much.',),
  ),
  'friend': Fact(
    '{p} best friend is {v}.', 'My best friend is {v}.',
    ('Who is your best friend?', "Who's your best friend?",
     'Do you have a friend?', 'Do you have friends?', 'Who is your friend?',
     'Tell me about your friends.', 'Do you have a best friend?'),
    ('You can be my friend.',),
  ),
  'dream': Fact(
    '{s} wants to {v}.', 'I want to {v}.',
    ('What do you want?', 'What is your dream?', "What's your dream?",
     'Do you have a dream?', 'What do you want to do one day?',
     'What do you wish for?', 'What are your plans?',
     'What would you like to do one day?'),
    ('I want nothing more.',),
  ),
}  # fmt: skip
