"""Describes the sequences of a round to the schedule, with rows and points.

Points are looked up anew after rows or points have come or gone. A sequence
follows another whose prompt runs now or will run before its own, if that will
record at least a page more of its text than the tree has. So the common
beginning of several prompts is prefilled once, even if they came at the same
moment.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from kaiju_jax.decoding.engine import phases
from kaiju_jax.decoding.engine import schedule
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.pages import recording
from kaiju_jax.decoding.pages import rows as rows_lib

_Sequences = Mapping[int, sequence_lib.Sequence]


class RoundInputs(NamedTuple):
  """The sequences and pages of a round, as `schedule.plan` takes them.

  Attributes:
    waiting: sequences without a row.
    running: sequences with one, but for those that wait for the host to read
      their last token.
    pages: by kind, that new rows may take; {} where none could join.
  """

  waiting: Sequence[schedule.Waiting]
  running: Sequence[schedule.Running]
  pages: Mapping[str, int]


class Lookups:
  """The lookups of the latest round; they hold until something changes.

  `account` are the decoder's rows; `reuses` says whether texts are recorded and
  resumed.
  """

  def __init__(self, account: rows_lib.Rows, reuses: bool):
    self.account, self.reuses = account, reuses
    self.key: tuple | None = None
    self.found: list[schedule.Waiting] = []


def describe(
  lookups: Lookups,
  waiting: _Sequences,
  running: _Sequences,
  left: Mapping[int, int],
  now: float,
) -> RoundInputs:
  """Returns the arguments of `schedule.plan` for the next round.

  `lookups` is the engine's own, and changes.
  `left` has, by number, the tokens that each running sequence must still
  prefill. `now` is the engine's clock, in seconds.
  """
  account, reuses = lookups.account, lookups.reuses
  waits = [_describe_waiting(one) for one in waiting.values()]
  runs = [
    _describe_running(one, left[number])
    for number, one in running.items()
    if not one.is_whole
  ]
  highest = max((one.priority for one in waits), default=0)
  may_park = waits and any(one.priority < highest for one in runs)
  if may_park:
    runs = [
      one._replace(frees=account.frees(running[one.number].row))
      # The slots of a search hold more than a text that could go on.
      if running[one.number].phase is not phases.Phase.SEARCHING
      else one
      for one in runs
    ]
  if not (waits and (account.free or may_park)):
    return RoundInputs(waits, runs, {})
  waits = schedule.sort_waiting(waits, now)
  most = schedule.OVERTAKES + account.free if account.free else 1
  # What will be recorded, by number: texts, and the lengths of their points.
  soon: dict[int, tuple[prefix_tree.Text, Sequence[int]]] = {}
  for number, one in running.items():
    if reuses and one.phase is phases.Phase.PREFILLING:
      held = one.length - left[number]
      stops = [stop for stop in one.stops if stop > held]
      soon[number] = one.text(), stops
  first = waits[:most]
  key = (
    account.version,
    [one.number for one in first],
    [(number, stops) for number, (_, stops) in soon.items()],
  )
  if key != lookups.key:
    lookups.found = [
      _looked_up(one, waiting[one.number], soon, account, reuses)
      for one in first
    ]
    lookups.key = key
  waits[:most] = [
    one._replace(needs=found.needs, left=found.left, follows=found.follows)
    for one, found in zip(first, lookups.found)
  ]
  return RoundInputs(waits, runs, account.free_pages())


def _looked_up(
  one: schedule.Waiting,
  sequence: sequence_lib.Sequence,
  soon: dict[int, tuple[prefix_tree.Text, Sequence[int]]],
  account: rows_lib.Rows,
  reuses: bool,
) -> schedule.Waiting:
  """Returns what a sequence needs, has left and follows; adds it to `soon`."""
  text, follows = sequence.resumable if reuses else None, ()
  needs, resumed = account.needs(sequence.room, text, sequence.extra)
  if text is not None:
    least = resumed + account.page
    follows = [
      number
      for number, (other, stops) in soon.items()
      if recording.count_resumable(other, stops, text, least) >= least
    ]
    whole = sequence.text()
    stops = recording.find_stops(resumed, sequence.prompt, whole.shared)
    soon[one.number] = whole, stops
  left = sequence.length - resumed
  return one._replace(needs=needs, left=left, follows=follows)


def _describe_waiting(one: sequence_lib.Sequence) -> schedule.Waiting:
  """Returns a sequence's entry in the schedule's queue."""
  request, deadline = one.request, None
  # What was drawn elsewhere, or had a row, was in time once.
  if request.deadline and not (len(request.drawn) or one.is_begun):
    deadline = one.came + request.deadline
  return schedule.Waiting(
    one.number,
    one.came,
    one.tag,
    request.priority,
    deadline,
    overtaken=one.overtaken,
    is_alone=request.scores_prompt,
  )


def _describe_running(
  one: sequence_lib.Sequence, left: int
) -> schedule.Running:
  """Returns a sequence's entry among the schedule's rows."""
  return schedule.Running(
    one.number,
    one.came,
    left,
    one.request.priority,
    one.passed,
    one.request.scores_prompt,
    one.tag,
    one.waited,
    is_guided=not one.draws,
  )
