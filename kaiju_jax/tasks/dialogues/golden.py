"""Generates golden conversations about characters of the dialogues.

Hand-written conversations are too few to gate with. These ask characters that
no training dialogue has for their facts, for how they are, and for what they
want, in the dialogues' own phrasings, so that the small chat model can pass
them. They are marked as generated.
"""

from collections.abc import Sequence

import numpy as np

from kaiju_jax.data.dialogues import personas
from kaiju_jax.data.dialogues import words
from kaiju_jax.evaluation.persona import golden

AUTHOR = 'generated'
# No training row is drawn from this seed (`rows.py` and `questions.py` list the
# others).
_SEED = 2**34
_HELLO, _HOW = 'Hello', 'How are you?'


def conversations(per_tier: int, seed: int = 0) -> list[golden.Conversation]:
  """Returns so many conversations of each tier, in turn."""
  found = []
  for number in range(per_tier * len(golden.TIERS)):
    rng = np.random.default_rng((_SEED, seed, number))
    tier = golden.TIERS[number % len(golden.TIERS)]
    found.append(golden.check(_one(rng, f'generated-{seed}-{number}', tier)))
  return found


def _one(rng: np.random.Generator, id: str, tier: str) -> golden.Conversation:
  persona = personas.draw(rng)
  while 'dream' not in persona.facts:
    persona = personas.draw(rng)
  known = [kind for kind in rng.permutation(sorted(persona.facts))]
  first, second, third = [kind for kind in known if kind != 'dream'][:3]
  turns, probes = [], []

  def ask(said: str, reply: str, property: str, *probe: Sequence[str]) -> None:
    turns.append(golden.Turn(said, reply))
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
  return golden.Conversation(
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
