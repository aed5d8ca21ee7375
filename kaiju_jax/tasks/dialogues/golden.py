"""Generates golden conversations about characters of the dialogues.

Hand-written conversations are too few to gate with. These ask characters that
no training dialogue has for their facts, for how they are, and for what they
want, in the dialogues' own phrasings, so that the small chat model can pass
them. They are marked as generated.

`practice` gives the same conversations with other characters, to fine-tune on.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np

from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data.dialogues import personas
from kaiju_jax.data.dialogues import words
from kaiju_jax.evaluation.persona import golden
from kaiju_jax.tasks.dialogues import rows

AUTHOR = 'generated'
# No training row is drawn from this seed (`rows.py` and `questions.py` list the
# others).
_SEED, _PRACTICE = 2**34, 2**35
# The fraction of practised characters whose values are random words.
_MIXED = 0.5
# The weight of practised replies that show a manner: they are few, and short.
_MANNER = 3.0
_HELLO, _HOW = 'Hello', 'How are you?'


def conversations(
  per_tier: int, seed: int = 0
) -> list[golden.GoldenConversation]:
  """Returns so many conversations of each tier, in turn."""
  found = []
  for number in range(per_tier * len(golden.TIERS)):
    rng = np.random.default_rng((_SEED, seed, number))
    tier = golden.TIERS[number % len(golden.TIERS)]
    found.append(
      golden.check(_one(rng, f'generated-{seed}-{number}', tier, _draw(rng)))
    )
  return found


def practice(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
  """Yields records of conversations to fine-tune on (`data/conversations.py`).

  No character is one of `conversations`. Half of them have random words as
  values, so that their answers must be copied from the description.
  """
  for number in range(count):
    rng = np.random.default_rng((_PRACTICE, seed, number))
    is_mixed = rng.random() < _MIXED
    persona = _draw(rng, is_mixed)
    one = _one(rng, 'practice', golden.TIERS[0], persona)
    speaks = {x.turn for x in one.probes if x.property == 'speech'}
    said = [
      {'role': 'system', 'content': prompt.persona(rows.fields_of(persona))},
      {'role': 'assistant', 'content': one.character.greeting},
    ]
    for number, turn in enumerate(one.turns, 1):
      weight = _MANNER if number in speaks else 1.0
      reply = {'content': turn.reference, 'weight': weight}
      said.append({'role': 'user', 'content': turn.user})
      said.append({'role': 'assistant', **reply})
    yield {'messages': said}


def _draw(rng: np.random.Generator, is_mixed: bool = False) -> personas.Persona:
  """Returns a character that wants something."""
  persona = personas.draw(rng, mixed=is_mixed)
  while 'dream' not in persona.facts:
    persona = personas.draw(rng, mixed=is_mixed)
  return persona


def _one(
  rng: np.random.Generator, id: str, tier: str, persona: personas.Persona
) -> golden.GoldenConversation:
  known = [kind for kind in rng.permutation(sorted(persona.facts))]
  first, second, third = [kind for kind in known if kind != 'dream'][:3]
  turns, probes = [], []

  def ask(said: str, reply: str, property: str, *probe: Sequence[str]) -> None:
    turns.append(golden.GoldenTurn(said, reply))
    expect, forbid = (*probe, ())[:2]
    probes.append(
      golden.Probe(len(turns), property, tuple(expect), tuple(forbid), 1.0)
    )

  def ask_fact(kind: str, property: str = 'backstory') -> None:
    said = personas.one(rng, personas.phrasings(kind))
    reply = personas.style(rng, persona, persona.answer(kind))
    ask(said, reply, property, [persona.facts[kind]])

  def ask_manner(said: str, which: str) -> None:
    own = words.MANNERS[persona.manner][which]
    others = [
      phrase
      for manner, phrases in words.MANNERS.items()
      if manner != persona.manner
      for phrase in phrases[which]
    ]
    ask(said, personas.one(rng, own), 'speech', own, others)

  ask_manner(_HELLO, 'hello')
  ask_fact(first)
  ask_fact('dream', 'goal')
  ask_manner(_HOW, 'well')
  ask_fact(second)
  ask_fact(third)
  ask_fact('dream', 'goal')
  ask_fact(first)
  return golden.GoldenConversation(
    id=id,
    tier=tier,
    author=AUTHOR,
    character=golden.Character(
      persona.name,
      persona.description,
      persona.personality,
      persona.scenario,
      personas.greeting(rng, persona),
    ),
    turns=tuple(turns),
    probes=tuple(probes),
  )
