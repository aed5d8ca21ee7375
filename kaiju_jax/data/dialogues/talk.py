"""Draws dialogues as trees: a greeting, and exchanges that follow it.

A user greets, asks for the facts that the character's description states, talks
about themselves, wants a joke, thanks, leaves. The character answers in its
manner and from its description.
"""

from collections.abc import Callable
import functools
import string
from typing import NamedTuple

import numpy as np

from kaiju_jax.data.dialogues import facts
from kaiju_jax.data.dialogues import lines
from kaiju_jax.data.dialogues import personas
from kaiju_jax.data.dialogues import words

USER, ASSISTANT = 'user', 'assistant'

# The relative frequencies of the kinds of a user's next message.
_KINDS = {
  'fact': 20,
  'about': 1,
  'talk': 8,
  'echo': 5,
  'feeling': 3,
  'introduction': 2,
  'recall': 1,
  'joke': 1,
  'song': 0.5,
  'story': 1,
}
# The chance, in most dialogues, that an exchange continues the one before.
_AGAIN = 0.45


class Node(NamedTuple):
  """A message in a dialogue's tree."""

  parent: int  # Index of the message that it answers; -1 for the first ones.
  role: str  # USER or ASSISTANT.
  text: str  # The message.


class _Talk(NamedTuple):
  """The state of a path through a dialogue."""

  end: int  # Its last message.
  user: str = ''  # The user's name, once the character knows it.
  expects: str = ''  # The kind of message that the last one asks for.
  known: frozenset[str] = frozenset()  # Facts that the user has heard.


def dialogue(
  rng: np.random.Generator,
  persona: personas.Persona,
  room: int,
  size: Callable[[str, str], int],
  user: str = '',
  greeted: bool = True,
) -> list[Node]:
  """Returns a tree of messages, in preorder.

  A user's message continues the exchange before it, or branches off at the
  root.

  Args:
    rng: the source of all draws.
    persona: the character.
    room: tokens that all messages together may take.
    size: (role, text) → a message's tokens.
    user: the user's name, if the character knows it from the beginning.
    greeted: whether the first message is a greeting, not a user's message.
  """
  nodes = []
  root = _Talk(-1, user)
  if greeted:
    first = personas.greeting(rng, persona)
    nodes.append(Node(-1, ASSISTANT, first))
    room -= size(ASSISTANT, first)
    asks = first.endswith('?') and not user
    root = _Talk(0, user, expects='name' if asks else '')
  talk = root
  again = _AGAIN if rng.random() < 0.7 else 0.97
  while True:
    question, answered, after = _exchange(rng, persona, talk)
    room -= size(USER, question) + size(ASSISTANT, answered)
    if room < 0:
      return nodes
    nodes.append(Node(talk.end, USER, question))
    nodes.append(Node(len(nodes) - 1, ASSISTANT, answered))
    after = after._replace(end=len(nodes) - 1)
    talk = after if rng.random() < again else root


def path(
  rng: np.random.Generator,
  persona: personas.Persona,
  room: int,
  size: Callable[[str, str], int],
) -> list[tuple[str, str]]:
  """Returns one conversation, a greeting and exchanges: (role, text) of each.

  Args:
    rng: the source of all draws.
    persona: the character.
    room: tokens that it may take.
    size: (role, text) → a message's tokens.
  """
  first = personas.greeting(rng, persona)
  said = [(ASSISTANT, first)]
  room -= size(*said[0])
  talk = _Talk(0)
  while True:
    question, answered, talk = _exchange(rng, persona, talk)
    pair = (USER, question), (ASSISTANT, answered)
    room -= sum(size(*one) for one in pair)
    if room < 0:
      return said
    said += pair


def exchanges(
  rng: np.random.Generator, persona: personas.Persona, room: int
) -> tuple[tuple[str, str], list[list[tuple[str, str]]]]:
  """Returns the greeting and the exchanges of a `path` of `room` bytes."""
  greeting, *said = path(rng, persona, room, lambda _, text: len(text.encode()))
  return greeting, [said[n : n + 2] for n in range(0, len(said), 2)]


def message(rng: np.random.Generator, persona: personas.Persona) -> str:
  """Returns a possible first message of a user."""
  return exchange(rng, persona)[0]


def exchange(
  rng: np.random.Generator, persona: personas.Persona
) -> tuple[str, str]:
  """Returns a possible first message of a user, and an answer to it."""
  return _exchange(rng, persona, _Talk(0))[:2]


def _exchange(
  rng: np.random.Generator, persona: personas.Persona, talk: _Talk
) -> tuple[str, str, _Talk]:
  """Returns a user's message, the character's answer, and the state after."""
  if talk.expects and rng.random() < 0.5:
    kind = talk.expects
  else:
    names = list(_KINDS)
    shares = np.cumsum(list(_KINDS.values()))
    kind = names[int(np.searchsorted(shares, rng.random() * shares[-1]))]
  after = talk._replace(expects='')
  question, answered, after = _KIND_OF[kind](rng, persona, after)
  if talk.user and '{user}' not in question and rng.random() < 0.1:
    answered = f'{answered} {talk.user}!'
  return type_like_user(rng, question), answered, after


def _fact(rng, persona, talk):
  have = [one for one in persona.facts if one not in talk.known]
  if have and rng.random() < 0.9:
    kind = personas.one(rng, have)
    answer = persona.answer(kind)
  else:
    kind = personas.one(rng, sorted(facts.FACTS))
    missing = facts.FACTS[kind].missing
    answer = persona.answer(kind) if kind in persona.facts else missing[0]
  question = personas.one(rng, facts.FACTS[kind].questions[:-1])
  talk = talk._replace(known=talk.known | {kind})
  return question, personas.style(rng, persona, answer), talk


def _about(rng, persona, talk):
  told = ' '.join(persona.answer(kind) for kind in list(persona.facts)[:2])
  called = lines.CALLED.format(name=persona.name)
  return personas.one(rng, lines.ABOUT), f'{called} {told}', talk


def _small_talk(rng, persona, talk):
  kind = personas.one(rng, sorted(lines.TALK))
  said, answers = lines.TALK[kind]
  answer = _fill(rng, answers, persona, talk)
  if answer is None:
    return _fact(rng, persona, talk)
  question = personas.one(rng, said).format(name=persona.name)
  if kind in ('hello', 'how', 'bye', 'called'):
    if persona.catchword and rng.random() < 0.3:
      answer = f'{persona.catchword} {answer}'
  else:
    answer = personas.style(rng, persona, answer)
  return question, answer, talk._replace(expects=_asks_for(answer))


def _echo(rng, persona, talk):
  kind = personas.one(rng, sorted(lines.ECHOES))
  said, answers = lines.ECHOES[kind]
  x = personas.one(rng, _SUBJECTS[kind])
  answer = _fill(rng, answers, persona, talk, x=x)
  if answer is None:
    return _fact(rng, persona, talk)
  return (
    personas.with_article(personas.one(rng, said).format(x=x)),
    answer,
    talk,
  )


def _feeling(rng, persona, talk):
  f = personas.one(rng, sorted(lines.FEELINGS))
  answer = _fill(rng, lines.FEELINGS[f], persona, talk)
  question = personas.one(rng, lines.FEELING).format(f=f)
  if talk.expects == 'feeling' and rng.random() < 0.5:
    question = f.capitalize()
  return (
    question,
    personas.style(rng, persona, answer or lines.UNDERSTOOD),
    talk,
  )


def _introduction(rng, persona, talk):
  user = personas.user_name(rng)
  question = personas.one(rng, (*lines.INTRODUCTION, '{user}')).format(
    user=user
  )
  answer = personas.one(rng, lines.WELCOME).format(user=user, name=persona.name)
  return question, answer, talk._replace(user=user)


def _recall(rng, persona, talk):
  known, unknown = lines.RECALLED
  answer = known.format(user=talk.user) if talk.user else unknown
  return (
    personas.one(rng, lines.RECALL),
    personas.style(rng, persona, answer),
    talk,
  )


def _joke(rng, persona, talk):
  del persona
  return personas.one(rng, lines.JOKE), personas.one(rng, lines.JOKES), talk


def _song(rng, persona, talk):
  del persona
  return personas.one(rng, lines.SONG), personas.one(rng, lines.SONGS), talk


def _story(rng, persona, talk):
  del persona
  tale = []
  slots = {
    'adjective': words.STORY_ADJECTIVES,
    'animal': words.ANIMALS,
    'other': words.ANIMALS,
    'thing': words.THINGS,
    'place': words.PLACES,
  }
  drawn = {name: personas.one(rng, values) for name, values in slots.items()}
  first, endings = lines.STORY
  for sentence in first, personas.one(rng, endings):
    tale.append(sentence.format(**drawn))
  return (
    personas.one(rng, lines.TALE),
    personas.with_article(' '.join(tale)),
    talk,
  )


_KIND_OF = {
  'fact': _fact,
  'about': _about,
  'talk': _small_talk,
  'echo': _echo,
  'feeling': _feeling,
  'introduction': _introduction,
  'name': _introduction,
  'recall': _recall,
  'joke': _joke,
  'song': _song,
  'story': _story,
}


def type_like_user(rng: np.random.Generator, text: str) -> str:
  """Returns a message as users type it: some without capitals or marks."""
  choice = rng.random()
  if choice < 0.5:
    return (
      text
      if text[-1] in '?!)'
      else f'{text}{personas.one(rng, (".", "", "!"))}'
    )
  if choice < 0.8:
    text = text.lower()
  if choice > 0.65:
    text = text.rstrip('?!.').replace("'", '') or text
  return text


_FOODS = tuple(
  f'{taste} {dish}'
  for taste in words.TASTES[: -personas.UNSEEN]
  for dish in words.DISHES[: -personas.UNSEEN]
)
_SUBJECTS = {
  'i_like': words.LIKES[: -personas.UNSEEN] + _FOODS[::7],
  'you_like': words.LIKES[: -personas.UNSEEN] + _FOODS[::11],
  'topic': words.TOPICS,
  'saw': words.THINGS + words.ANIMALS,
  'went': words.PLACES,
  'relative': words.RELATIVES,
  'hobby': words.HOBBIES[: -personas.UNSEEN],
}


def _fill(rng, answers, persona: personas.Persona, talk: _Talk, x: str = ''):
  """Returns a drawn answer that the persona can fill; None without any."""
  slots = {
    'name': persona.name,
    'place': persona.place,
    'x': x,
    'X': x and x[0].upper() + x[1:],
    **{k: personas.one(rng, words.MANNERS[persona.manner][k])
       for k in ('hello', 'well', 'bye')},
    **persona.facts,
  }  # fmt: skip
  unheard = [one for one in persona.facts if one not in talk.known]
  if unheard:
    slots['fact'] = persona.answer(personas.one(rng, unheard))
  usable = [one for one in answers if all(slots.get(n) for n in _slots(one))]
  if not usable:
    return None
  return personas.with_article(personas.one(rng, usable).format(**slots))


@functools.cache
def _slots(text: str) -> tuple[str, ...]:
  return tuple(name for _, name, _, _ in string.Formatter().parse(text) if name)


def _asks_for(answer: str) -> str:
  if answer.endswith(('And you?', 'How are you?')):
    return 'feeling'
  if answer.endswith(('name?', 'Who are you?', 'And yours?')):
    return 'name'
  return 'story' if answer.endswith('tell you a story.') else ''
