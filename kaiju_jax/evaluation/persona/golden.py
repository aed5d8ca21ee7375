"""Golden conversations: what a character is asked, and what it must say.

A file of them is strict JSONL; one line is one conversation:

    {"id": "official-tilda", "tier": "official", "author": "…",
     "character": {"name": "Tilda", "description": "…", "personality": "…",
                   "scenario": "…", "greeting": "…"},
     "turns": [{"user": "Where do you live?", "reference": "In a windmill."},
               … eight of them …],
     "probes": [{"turn": 1, "property": "backstory",
                 "expect": ["windmill"], "forbid": ["castle"], "weight": 1}, …]}

A probe checks the reply to one turn, counted from 1, for one property: 'speech'
(tone, vocabulary, formality), 'backstory' (facts of the description) or 'goal'
(what the character wants). The last turn must be probed for backstory. A line
may name its `language`, 'en' by default.
"""

import dataclasses
import pathlib
from typing import Any

from kaiju_jax.data import reading
from kaiju_jax.storage import strict

TIERS = 'public', 'official', 'mature'
PROPERTIES = 'speech', 'backstory', 'goal'
TURNS = 8
LANGUAGE = 'en'


@dataclasses.dataclass(frozen=True)
class Character:
  """The fields of a character's card that a prompt is made of."""

  name: str
  description: str
  personality: str
  scenario: str
  greeting: str


@dataclasses.dataclass(frozen=True)
class GoldenTurn:
  """A user's message, and a reply that the author holds for right."""

  user: str
  reference: str


@dataclasses.dataclass(frozen=True)
class Probe:
  """What one reply must hold, and must not hold."""

  turn: int  # The turn whose reply is looked at, from 1.
  property: str  # One of `PROPERTIES`.
  # Phrases of which the reply must hold one; none if it only must not hold
  # those of `forbid`.
  expect: tuple[str, ...] = ()
  forbid: tuple[str, ...] = ()  # Phrases of which it must hold none.
  # The probe's weight among those of its property, above 0.
  weight: float = 1.0


@dataclasses.dataclass(frozen=True)
class GoldenConversation:
  """One golden conversation: see the module."""

  id: str  # Its name, unique in its file.
  tier: str  # One of `TIERS`, the character's.
  author: str  # Who wrote it; 'generated' if a program did.
  character: Character
  turns: tuple[GoldenTurn, ...]  # `TURNS` messages with reference replies.
  probes: tuple[Probe, ...]  # At least one per property.
  language: str = LANGUAGE  # The language that is spoken, as BCP 47 names it.


def load(path: str | pathlib.Path) -> tuple[GoldenConversation, ...]:
  """Returns a file's conversations.

  Raises:
    OSError: the file cannot be read.
    ValueError: names the line, the field, its value and what would be right.
  """
  known: set[str] = set()

  def parse(data: Any) -> GoldenConversation:
    one = check(strict.parse(GoldenConversation, data))
    if one.id in known:
      raise ValueError(f'id={one.id!r}: stands twice in the file.')
    known.add(one.id)
    return one

  found = tuple(reading.parse_lines(path, parse))
  if not found:
    raise ValueError(f'{path}: holds no conversations.')
  return found


def check(one: GoldenConversation) -> GoldenConversation:
  """Returns a conversation that is whole.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  if not one.id:
    raise ValueError('id: must not be empty.')
  if one.tier not in TIERS:
    raise ValueError(f'tier={one.tier!r}: must be one of {", ".join(TIERS)}.')
  if not one.language.strip():
    raise ValueError('language: must not be empty.')
  if not one.author:
    raise ValueError('author: must say who wrote the conversation.')
  if len(one.turns) != TURNS:
    raise ValueError(f'turns: {len(one.turns)}; must be {TURNS}.')
  for number, turn in enumerate(one.turns, 1):
    if not turn.user.strip() or not turn.reference.strip():
      raise ValueError(f'turns[{number}]: user and reference must have text.')
  for number, probe in enumerate(one.probes, 1):
    _check_probe(f'probes[{number}]', probe)
  found = {probe.property for probe in one.probes}
  if missing := [name for name in PROPERTIES if name not in found]:
    raise ValueError(f'probes: none for {", ".join(missing)}.')
  if not any(
    probe.turn == TURNS and probe.property == 'backstory'
    for probe in one.probes
  ):
    raise ValueError(f'probes: none for backstory at turn {TURNS}, the last.')
  return one


def _check_probe(where: str, probe: Probe) -> None:
  if not 1 <= probe.turn <= TURNS:
    raise ValueError(f'{where}.turn={probe.turn}: must be 1…{TURNS}.')
  if probe.property not in PROPERTIES:
    raise ValueError(
      f'{where}.property={probe.property!r}: must be one of'
      f' {", ".join(PROPERTIES)}.'
    )
  if not probe.expect and not probe.forbid:
    raise ValueError(f'{where}: must expect or forbid some phrase.')
  for name in 'expect', 'forbid':
    for phrase in getattr(probe, name):
      if not any(letter.isalnum() for letter in phrase):
        raise ValueError(f'{where}.{name}={phrase!r}: has no word.')
  if not 0 < probe.weight < float('inf'):
    raise ValueError(f'{where}.weight={probe.weight}: must be above 0.')
