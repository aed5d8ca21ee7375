"""Decides which variations are kept, and why the others are not.

A variation is a synthetic question about a passage and its answer. It is judged
by rules in this order, and the first rule that it breaks is its verdict:

    form          question and answer have words, and came to their end
    grounded      the answer's words stand in the passage, one after another
    consistent    the greedy answer has the same words as the drawn one
    gain          the passage says enough about the answer:
                  log p(a | passage, q) − log p(a | q) ≥ δ
    repeated      no variation kept before asks the same with the same words

A question that stands in an evaluation set is `LEAKED`; `studies/synthesize.py`
judges that once for all variations, where it writes them.

Words are compared without case and punctuation. The rules are our guess; the
sources name none.
"""

from collections.abc import Sequence
import re

from kaiju_jax.synthesis import settings as settings_lib
from kaiju_jax.synthesis import variations as variations_lib

KEPT = 'kept'
LEAKED = 'leaked'

_WORD = re.compile(r'\w+')


def words(text: str) -> tuple[str, ...]:
  """Returns a text's words, without case and punctuation."""
  return tuple(_WORD.findall(text.casefold()))


def judge(
  passage: str,
  variations: Sequence[variations_lib.Variation],
  settings: settings_lib.Settings,
) -> list[str]:
  """Returns each variation's verdict: KEPT, or the rule that it breaks.

  Args:
    passage: the passage of all variations.
    variations: in order; a later one that repeats a kept one is dropped.
    settings: which rules apply.
  """
  verdicts, kept = [], []
  for one in variations:
    verdict = _alone(passage, one, settings)
    if verdict == KEPT and any(_repeats(one, k, settings) for k in kept):
      verdict = 'repeated'
    if verdict == KEPT:
      kept.append(one)
    verdicts.append(verdict)
  return verdicts


def _alone(passage, one, settings) -> str:
  answer = words(one.answer)
  if not answer or not words(one.question) or one.gain is None:
    return 'form'
  if settings.grounded and not _holds(words(passage), answer):
    return 'grounded'
  if settings.consistent and words(one.again) != answer:
    return 'consistent'
  return KEPT if one.gain >= settings.gain else 'gain'


def _holds(text: tuple[str, ...], part: tuple[str, ...]) -> bool:
  size = len(part)
  return any(text[i : i + size] == part for i in range(len(text) - size + 1))


def _repeats(one, other, settings) -> bool:
  """Returns whether two variations share an answer and nearly a question."""
  if words(one.answer) != words(other.answer):
    return False
  ours, theirs = words(one.question), words(other.question)
  if ours == theirs:
    return True
  shared = len(set(ours) & set(theirs)) / len(set(ours) | set(theirs))
  return shared >= settings.overlap and settings.overlap < 1
