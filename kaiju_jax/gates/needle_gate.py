"""The quantization gate's needle test: what a candidate no longer recalls.

Both models answer the same questions, greedily: one kind of `tasks/recall/`, in
English, or facts of characters in the words of the small chat model
(`tasks/dialogues/questions`). The test passes if exact bounds of the paired
loss show that at most `MOST` of the questions are lost. If the baseline recalls
nothing, nothing is evaluated.
"""

from typing import Any
from typing import NamedTuple

from kaiju_jax.evaluation.gate import paired_loss
from kaiju_jax.evaluation.persona import responders
from kaiju_jax.gates import players
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import statistics
from kaiju_jax.tasks.dialogues import questions as dialogues
from kaiju_jax.tasks.recall import asking as recall
from kaiju_jax.tasks.recall import problems

MOST = 0.02
FACTS = 'facts'
NAMES = (FACTS, *problems.KINDS)
_FACTS_PER_CHARACTER = 3


class Needle(NamedTuple):
  """What two models recall of the same questions."""

  name: str  # One of `NAMES`.
  loss: paired_loss.PairedLoss  # The candidate's.
  guess: float  # The share of right answers if a value of the text is guessed.


def measure(
  baseline: players.Opened,
  candidate: players.Opened,
  name: str,
  count: int,
  length: int,
) -> Needle:
  """Asks both models, which have one chat format.

  Args:
    baseline, candidate: the models.
    name: one of `NAMES`.
    count: questions.
    length: tokens of the rows that become text; see `recall.draw`.

  Raises:
    ValueError: no such name, or the questions do not fit the rows or the
      models' positions.
  """
  if name not in NAMES:
    raise ValueError(f'needle={name!r}: must be one of {", ".join(NAMES)}.')
  if name == FACTS:
    both = (_ask_facts(one, count) for one in (baseline, candidate))
    return Needle(name, paired_loss.compare(*both), 0.0)
  questions = recall.draw([name], [length], count, 0)
  both = (
    [
      answered.is_right
      for answered in recall.ask(
        responders.Model(one.generator, one.format), questions
      )
    ]
    for one in (baseline, candidate)
  )
  guess = 1 / min(len(one.candidates) for _, one in questions)
  return Needle(name, paired_loss.compare(*both), guess)


def _ask_facts(opened: players.Opened, count: int) -> list[bool]:
  """Returns which questions for facts of characters are answered right."""
  characters = -(-count // _FACTS_PER_CHARACTER)
  drawn = dialogues.draw_questions(
    opened.format, characters, opened.decoder.length
  )
  asked = [one for one in drawn if one.kind == FACTS][:count]
  results = dialogues.replies(opened.generator, opened.format, asked)
  return [
    bool(dialogues.judge(one, result).right)
    for one, result in zip(asked, results)
  ]


def check(found: Needle, most: float = MOST) -> decision_lib.Check:
  """Returns the check that at most `most` of the questions are lost."""
  loss, name = found.loss, f'needle {found.name}'
  shown = statistics.at_least(loss.baseline, loss.count, paired_loss.CONFIDENCE)
  if shown <= found.guess + most:
    return decision_lib.abstain(
      f'{name}: the baseline has {loss.baseline} of {loss.count} right, no more'
      ' than a guess: it has nothing to lose.'
    )
  lost = f'{name}: {loss.value:.1%} of {loss.count} questions are lost'
  return decision_lib.check_at_most(
    loss,
    most,
    f'{lost}, at least {loss.low:.1%}; at most {most:.0%} may be.',
    f'{lost}, at most {loss.high:.1%}; ask more to show {most:.0%}.',
  )


def figures(found: Needle) -> dict[str, Any]:
  """Returns the figures as plain data."""
  loss = found.loss
  return {
    'name': found.name,
    'guess': found.guess,
    **loss._asdict(),
    'loss': {'value': loss.value, 'low': loss.low, 'high': loss.high},
  }


def describe(found: Needle) -> str:
  """Returns one line for the report."""
  loss = found.loss
  return (
    f'Needle {found.name}: {loss.baseline} → {loss.candidate} of {loss.count}'
    f' right; {loss.lost} lost, {loss.gained} gained: {loss.value:+.1%}'
    f' ({loss.low:+.1%} … {loss.high:+.1%}, exact, 95 %).'
  )
