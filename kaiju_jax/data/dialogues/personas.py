"""Invents characters: their names, their facts, and how they talk.

A character has a name, a manner and several facts. Its description is a
sentence per fact, and its answers use the same words.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import re

import numpy as np

from kaiju_jax.data.dialogues import facts
from kaiju_jax.data.dialogues import lines
from kaiju_jax.data.dialogues import words

# The number of values at the end of each list that only `fresh` characters
# have.
UNSEEN = 3

_VALUES = {
  'work': words.JOBS,
  'colour': words.COLOURS,
  'likes': words.LIKES,
  'hobby': words.HOBBIES,
  'fear': words.FEARS,
  'dream': words.DREAMS,
}
_ARTICLE = re.compile(r'\b([Aa]) (?=[aeiou])')
# The lists that give mixed values their words, and the words that stay.
_LISTS = (
  *(words.JOBS, words.SITES, words.LOCATIONS, words.TASTES, words.DISHES),
  *(words.COLOURS, words.LIKES, words.HOBBIES, words.ANIMALS, words.COATS),
  *(words.FEARS, words.DREAMS, words.PLACES, words.THINGS, words.TRAITS),
)
_STAY = frozenset(
  (
    *('a', 'an', 'the', 'by', 'in', 'on', 'of', 'at', 'to', 'with', 'called'),
    *('near', 'under'),
  )
)
_NOT_MIXED = 'age', 'origin', 'friend'  # They have many values anyway.
_INVENTED = 0.15  # The fraction of a mixed value's words that are invented.


@dataclasses.dataclass(frozen=True)
class Persona:
  """A character."""

  name: str  # Its name.
  pronoun: str  # 'She', 'He' or 'It'.
  manner: str  # A key of `words.MANNERS`.
  trait: str  # A second word for its personality.
  catchword: str  # Its favourite exclamation; '' for none.
  place: str  # Where a user meets it; '' for nowhere in particular.
  # {a key of `facts.FACTS`: value}, in the description's order.
  facts: Mapping[str, str]

  @property
  def description(self) -> str:
    """A sentence per fact."""
    said = []
    for index, (kind, value) in enumerate(self.facts.items()):
      subject, owner = self.name, f"{self.name}'s"
      if index:
        subject, owner = self.pronoun, lines.PRONOUNS[self.pronoun]
      statement = facts.FACTS[kind].statement
      said.append(statement.format(s=subject, p=owner, v=value))
    return ' '.join(said)

  @property
  def personality(self) -> str:
    """The manner, the trait and the catchword, as text."""
    said = self.catchword and lines.CATCHWORD.format(v=self.catchword)
    return f'{self.manner}, {self.trait}.{said}'

  @property
  def scenario(self) -> str:
    """The place of the meeting, as a sentence; '' for none."""
    return self.place and lines.SCENARIO.format(s=self.name, v=self.place)

  def answer(self, kind: str) -> str:
    """Returns the character's answer about a fact that it has."""
    return facts.FACTS[kind].answer.format(v=self.facts[kind])


def draw(
  rng: np.random.Generator, fresh: bool = False, mixed: bool = False
) -> Persona:
  """Returns a drawn character.

  Args:
    rng: the source of all draws.
    fresh: whether its values come from those that no other persona has.
    mixed: whether its values are random words, which nobody can guess, so that
      an answer must be copied from the description.
  """
  values = functools.partial(_drawn_value, rng, fresh)
  count = int(rng.integers(4, 8))
  kinds = list(rng.permutation(sorted(facts.FACTS))[:count])
  # Most characters are introduced by their work.
  if rng.random() < 0.8:
    kinds = ['work', *(one for one in kinds if one != 'work')]
  has_catchword = rng.random() < 0.5
  told = {kind: values(kind) for kind in kinds}
  if mixed:
    told = {kind: _mix(rng, kind, value) for kind, value in told.items()}
  return Persona(
    name=invented_name(rng),
    pronoun=one(rng, sorted(lines.PRONOUNS)),
    manner=one(rng, sorted(words.MANNERS)),
    trait=one(rng, words.TRAITS),
    catchword=one(rng, words.CATCHWORDS) if has_catchword else '',
    place=one(rng, words.PLACES) if rng.random() < 0.5 else '',
    facts=told,
  )


def invented_name(rng: np.random.Generator) -> str:
  """Returns a name of syllables, one of some tens of thousands."""
  count = int(rng.integers(1, 3))
  parts = [one(rng, words.SYLLABLES) for _ in range(count)]
  return ''.join((*parts, one(rng, words.ENDINGS))).capitalize()


def user_name(rng: np.random.Generator) -> str:
  """Returns a user's name: a common one, or an invented one."""
  if rng.random() < 0.4:
    return one(rng, words.NAMES)
  return invented_name(rng)


def greeting(rng: np.random.Generator, persona: Persona) -> str:
  """Returns the character's first message."""
  said = [one(rng, words.MANNERS[persona.manner]['hello'])]
  if persona.catchword and rng.random() < 0.7:
    said.insert(0, persona.catchword)
  said.append(lines.CALLED.format(name=persona.name))
  kinds = list(persona.facts)
  choice = rng.random()
  if choice < 0.3:
    said.append(persona.answer(kinds[0]))
  elif choice < 0.5 and persona.place:
    said.append(lines.AT.format(v=persona.place))
  elif choice < 0.8:
    said.append(one(rng, lines.WHO))
  return ' '.join(said)


def style(rng: np.random.Generator, persona: Persona, text: str) -> str:
  """Returns an answer in the character's manner."""
  choice = rng.random()
  if persona.catchword and choice < 0.3:
    return f'{persona.catchword} {text}'
  if choice > 0.7:
    opener = one(rng, words.MANNERS[persona.manner]['openers'])
    if opener[-1] not in '.!?' and not text.startswith(('I ', persona.name)):
      text = text[0].lower() + text[1:]
    return f'{opener} {text}'
  return text


def phrasings(kind: str, unseen: bool = False) -> Sequence[str]:
  """Returns the questions for a fact in dialogues, or the unseen one."""
  questions = facts.FACTS[kind].questions
  return questions[-1:] if unseen else questions[:-1]


def _drawn_value(rng: np.random.Generator, fresh: bool, kind: str) -> str:
  def pick(values: Sequence[str]) -> str:
    return one(rng, values[-UNSEEN:] if fresh else values[:-UNSEEN])

  if kind == 'home':
    return f'{pick(words.SITES)} {pick(words.LOCATIONS)}'
  if kind == 'food':
    return f'{pick(words.TASTES)} {pick(words.DISHES)}'
  if kind == 'pet':
    slots = pick(words.COATS), pick(words.ANIMALS), invented_name(rng)
    return with_article(lines.PET.format(*slots))
  if kind == 'age':
    # Young, old, or very old.
    return str(int(rng.integers(7, (20, 90, 900)[rng.integers(3)])))
  if kind in ('origin', 'friend'):
    return invented_name(rng)
  return pick(_VALUES[kind])


def _mix(rng: np.random.Generator, kind: str, value: str) -> str:
  """Returns a value of the same form, with random words."""
  if kind in _NOT_MIXED:
    return value

  def other(word: str) -> str:
    if word in _STAY or word[0].isupper():
      return word
    if rng.random() < _INVENTED:
      return invented_name(rng).lower()
    return one(rng, _free_words())

  found = ' '.join(map(other, value.split()))
  return with_article(re.sub(r'\ban\b', 'a', found))


@functools.cache
def _free_words() -> tuple[str, ...]:
  """Returns the words that a mixed value may have."""
  found = {
    word
    for values in _LISTS
    for value in values[:-UNSEEN]
    for word in value.split()
  }
  return tuple(sorted(found - _STAY))


def with_article(text: str) -> str:
  """Returns the text with "an" in place of "a" before a vowel."""
  return _ARTICLE.sub(r'\1n ', text)


def one(rng: np.random.Generator, values: Sequence[str]) -> str:
  """Returns one of the values, all equally likely."""
  return values[int(rng.integers(len(values)))]
