"""Decides whether a responder stays in character.

Source 003's target: in each tier the median score of a conversation, the mean
of its three properties, is at least 4.2 of 5. It wants about 200 conversations
per tier; fewer decide nothing.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import datetime
import statistics
from typing import Any
from typing import NamedTuple

from kaiju_jax.evaluation.persona import dialogue
from kaiju_jax.evaluation.persona import golden
from kaiju_jax.evaluation.persona import judges
from kaiju_jax.evaluation.persona import responders
from kaiju_jax.evaluation.persona import rules
from kaiju_jax.evaluation.persona import scores
from kaiju_jax.gates import persona_judge
from kaiju_jax.gates import settings as settings_lib
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics as statistics_lib
from kaiju_jax.storage import folders

MEDIAN, NEEDED = 4.2, 200


class Judged(NamedTuple):
  """A conversation's score."""

  conversation: golden.GoldenConversation
  replies: list[str]  # A reply per turn.
  score: Mapping[str, float]  # By property, 1…5.

  @property
  def mean(self) -> float:
    """The mean of the properties."""
    return statistics.fmean(self.score.values())


def play(
  responder: dialogue.Responder,
  conversations: Sequence[golden.GoldenConversation],
  judge: judges.Judge,
  forced: bool = False,
  rows: int = 1,
) -> list[Judged]:
  """Plays conversations as `dialogue.play`, and judges the replies."""
  replies = dialogue.play(responder, conversations, forced, rows)
  return [
    Judged(one, said, judge.score(one, said))
    for one, said in zip(conversations, replies, strict=True)
  ]


def checks_of_medians(
  judged: Sequence[Judged],
) -> Iterator[decision_lib.Check]:
  """Yields a check per tier: enough conversations, and a median shown."""
  for tier in golden.TIERS:
    values = [x.mean for x in judged if x.conversation.tier == tier]
    if len(values) < NEEDED:
      yield decision_lib.abstain(
        f'{tier}: {len(values)} conversations; at least {NEEDED} are needed.'
      )
      continue
    share = scores.share_at_least(values, MEDIAN)
    yield decision_lib.refuse_if(
      share < 0.5,
      f'{tier}: the median is {statistics.median(values):.2f}; at least'
      f' {share:.0%} of conversations score {MEDIAN} or more, and half must.',
    )


def drop_checks(
  judged: Sequence[Judged],
  before: Mapping[str, float],
  most: float,
  tiers: Sequence[str] = golden.TIERS,
) -> Iterator[decision_lib.Check]:
  """Yields a check per tier: the mean has not dropped by more than `most`.

  A drop is refused if its one-sided 95 % lower bound is larger. If the upper
  bound is larger, too few pairs were evaluated.

  Args:
    judged: the candidate's conversations.
    before: the baseline's scores by conversation.
    most: the largest allowed drop.
    tiers: the tiers that are checked.
  """
  for tier in tiers:
    drops = list_drops(
      [one for one in judged if one.conversation.tier == tier], before
    )
    if len(drops) < 2:
      yield decision_lib.abstain(
        f'{tier}: {len(drops)} conversations were scored before as well; at'
        ' least two are needed.'
      )
      continue
    found = statistics_lib.bootstrap_mean(
      drops, level=2 * scores.CONFIDENCE - 1
    )
    least = scores.least_drop(drops)
    dropped = f'{tier}: scores dropped by {found.value:.2f}'
    yield decision_lib.check_at_most(
      found,
      most,
      f'{dropped}, at least {found.low:.2f}; at most {most} is allowed.',
      f'{dropped}, at most {found.high:.2f}: {len(drops)} pairs show a drop of'
      f' {least:.2f} or more.',
    )


def list_drops(
  judged: Sequence[Judged], before: Mapping[str, float]
) -> list[float]:
  """Returns the baseline's scores minus the candidate's, where it has both."""
  return [
    before[one.conversation.id] - one.mean
    for one in judged
    if one.conversation.id in before
  ]


def figures(judged: Sequence[Judged]) -> dict[str, Any]:
  """Returns means with intervals, medians and scores by turn."""
  tiers = {}
  for tier in golden.TIERS:
    of_tier = [one for one in judged if one.conversation.tier == tier]
    if not of_tier:
      continue
    values = [one.mean for one in of_tier]
    tiers[tier] = {
      'mean': statistics_lib.bootstrap_mean(values),
      'median': statistics.median(values),
      'share_at_least_median': scores.share_at_least(values, MEDIAN),
      'properties': {
        name: statistics_lib.bootstrap_mean(
          [one.score[name] for one in of_tier]
        )
        for name in golden.PROPERTIES
      },
    }
  turns: dict[int, list[float]] = {}
  for one in judged:
    found = rules.score_turns(one.conversation, one.replies)
    for turn, value in found.items():
      turns.setdefault(turn, []).append(value)
  return report.plain(
    {
      'tiers': tiers,
      'by_turn_rules': {
        turn: statistics_lib.bootstrap_mean(values)
        for turn, values in sorted(turns.items())
      },
      'scores': {one.conversation.id: one.mean for one in judged},
    }
  )


def add_tables(
  page: report.Report, title: str, found: Mapping[str, Any]
) -> None:
  """Adds the tables of `figures` to a page, below a title."""
  read = statistics_lib.Estimate.read
  page.say(f'# {title}')
  page.table(
    [
      (
        tier,
        one['mean']['count'],
        read(one['mean']),
        f'{one["median"]:.2f}',
        *(read(one['properties'][name]) for name in golden.PROPERTIES),
      )
      for tier, one in found['tiers'].items()
    ],
    ('tier', 'conversations', 'mean', 'median', *golden.PROPERTIES),
  )
  lines = ['Scores from 1 to 5, with 95 % intervals over conversations (BCa).']
  if found.get('rectified'):
    lines.append(
      'The mean that people would give, from their labels:'
      f' {read(found["rectified"])}.'
    )
  page.say(*lines)
  turns = found['by_turn_rules']
  values = (f'{one["value"]:.2f}' for one in turns.values())
  page.table([('score by rules', *values)], ('turn', *turns))


def run(settings: settings_lib.Persona) -> report.Report:
  """Plays the conversations, and returns the report with its decision.

  Raises:
    ImportError, OSError, RuntimeError, ValueError: something cannot be read, or
      is refused.
  """
  if settings.out:
    folders.refuse_existing(settings.out)
  before = settings_lib.load_decision(settings.watch)
  calibration = settings_lib.load_decision(settings.judge.calibration)
  conversations, source = settings.conversations.read(settings.seed)
  judge = settings.judge.read(settings.responder.player)
  responder, name, identity = _open_responder(settings)
  persona_judge.refuse_own(judge.identity, identity)
  if settings.swapped:
    responder = responders.Swapped(responder, conversations)
  judged = play(responder, conversations, judge, settings.forced, settings.rows)
  found = figures(judged)
  checks = list(
    persona_judge.calibration_checks(
      judge.identity, calibration, datetime.date.today()
    )
  )
  found['rectified'] = report.plain(
    persona_judge.rectify(list(found['scores'].values()), calibration)
  )
  if before:
    persona_judge.refuse_other(judge.identity, before)
    checks += drop_checks(judged, before.figures['scores'], settings.most)
  else:
    checks += checks_of_medians(judged)
  decision = decision_lib.decide(
    'persona',
    checks,
    found,
    {'golden': source, 'responder': name, 'judge': judge.identity},
  )
  run = 'forced run' if settings.forced else 'free run'
  who = f'{name}, another persona' if settings.swapped else name
  page = report.Report()
  title = f'Persona by {judge.identity}, {run}: {who}'
  add_tables(page, title, found)
  return page.decide(decision)


def _open_responder(settings: settings_lib.Persona):
  """Returns the responder, its name, and its identity among judges."""
  if settings.references:
    return responders.References(), 'references', ''
  return settings.responder.open(
    settings.rows, settings.temperature, settings.seed
  )
