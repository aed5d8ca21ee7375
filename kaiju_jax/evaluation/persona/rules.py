"""Scores replies by rules: phrases that they must hold, or must not.

The score of a property is

    1 + 4 · (Σ weight of met probes − Σ weight of broken ones) / Σ weight

within 1 and 5. A probe is met if the reply contains one of its expected phrases
(or none is expected), and broken if it contains a forbidden one. Phrases are
compared word for word, without case and punctuation.
"""

from collections.abc import Sequence
import re

from kaiju_jax.evaluation.persona import golden

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def score(
  conversation: golden.GoldenConversation, replies: Sequence[str]
) -> dict[str, float]:
  """Returns the score of each property, 1…5; `replies` has one per turn."""
  judged = [
    (probe, judge(probe, replies[probe.turn - 1]))
    for probe in conversation.probes
  ]
  return {
    name: _score([one for one in judged if one[0].property == name])
    for name in golden.PROPERTIES
  }


def score_turns(
  conversation: golden.GoldenConversation, replies: Sequence[str]
) -> dict[int, float]:
  """Returns the score of each probed turn, all properties together, 1…5."""
  judged: dict[int, list] = {}
  for probe in conversation.probes:
    reply = replies[probe.turn - 1]
    judged.setdefault(probe.turn, []).append((probe, judge(probe, reply)))
  return {turn: _score(found) for turn, found in sorted(judged.items())}


def judge(probe: golden.Probe, reply: str) -> int:
  """Returns 1 for a met probe, -1 for a broken one, otherwise 0."""
  words = _words(reply)
  if any(_holds(words, phrase) for phrase in probe.forbid):
    return -1
  if not words:
    return 0
  is_met = not probe.expect or any(_holds(words, x) for x in probe.expect)
  return int(is_met)


def _score(judged: Sequence[tuple[golden.Probe, int]]) -> float:
  weight = sum(probe.weight for probe, _ in judged)
  got = sum(probe.weight * found for probe, found in judged)
  return 1 + 4 * max(0.0, got / weight)


def _words(text: str) -> list[str]:
  return [word.replace('’', "'") for word in _WORD.findall(text.casefold())]


def _holds(words: Sequence[str], phrase: str) -> bool:
  wanted = _words(phrase)
  return any(
    words[begin : begin + len(wanted)] == wanted
    for begin in range(len(words) - len(wanted) + 1)
  )
