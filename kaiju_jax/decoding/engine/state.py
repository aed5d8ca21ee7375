"""The sequences of an engine, and the plan of their next round.

What a waiting sequence could resume is found anew only after rows or points
have come or gone. A sequence follows another whose prompt runs now or will run
before its own, if that will record at least a page more of its text than the
prefix tree has. So the common beginning of several prompts is prefilled once,
even if they came at the same moment.
"""

from collections.abc import Sequence
import dataclasses

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import admission
from kaiju_jax.decoding.engine import pacing
from kaiju_jax.decoding.engine import phases
from kaiju_jax.decoding.engine import schedule
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.pages import recording

# Weight of the newest duration in the mean, of its error in the deviation.
_NEWEST, _NEWEST_DEVIATION = 0.125, 0.25
# What will be recorded, by number: texts, and the lengths of their points.
_Recordings = dict[int, tuple[prefix_tree.Text, Sequence[int]]]


@dataclasses.dataclass
class Estimate:
  """A running estimate of a duration: mean and mean deviation, in seconds."""

  mean: float = 0.0
  deviation: float = 0.0

  def note(self, seconds: float) -> None:
    """Takes in a duration."""
    if not self.mean:
      self.mean = seconds
      return
    error = seconds - self.mean
    self.mean += _NEWEST * error
    self.deviation += _NEWEST_DEVIATION * (abs(error) - self.deviation)

  @property
  def high(self) -> float:
    """A duration that is seldom exceeded (Jacobson 1988)."""
    return self.mean + 2 * self.deviation


@dataclasses.dataclass
class Durations:
  """The durations of rounds, and of what a chunk of prompts adds."""

  step: Estimate = dataclasses.field(default_factory=Estimate)
  chunk: Estimate = dataclasses.field(default_factory=Estimate)

  def note(self, seconds: float, draws: bool, prefills: bool) -> None:
    """Takes in the duration of a round that drew, prefilled, or both."""
    if prefills:
      self.chunk.note(max(seconds - self.step.mean * draws, 0.0))
    elif draws:
      self.step.note(seconds)


class State:
  """The sequences of one engine, by number: `waiting` for a row, or `running`.

  `reuses` says whether texts are recorded and resumed; `chunk` and `pace` are
  the engine's. `durations` are those of its rounds.
  """

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    reuses: bool,
    chunk: int,
    pace: pacing.Pace | None = None,
  ):
    self.waiting: dict[int, sequence_lib.Sequence] = {}
    self.running: dict[int, sequence_lib.Sequence] = {}
    self.durations: Durations = Durations()
    self._chunk = chunk
    self.shares: schedule.Shares = schedule.Shares()
    self._decoder = decoder
    self._account = decoder.account
    self._reuses = reuses
    self._pacing = None if pace is None else pacing.Pacing(pace)
    # What the first in the queue need, and what that was found for.
    self._found: list[schedule.Waiting] = []
    self._found_for: tuple | None = None

  def sequences(self) -> list[sequence_lib.Sequence]:
    """Returns all sequences, those that wait first."""
    return [*self.waiting.values(), *self.running.values()]

  def add(self, one: sequence_lib.Sequence) -> None:
    """Puts a new sequence into the queue."""
    one.tag = self.shares.tag(one.owner, one.room)
    self.waiting[one.number] = one

  def join(self, one: sequence_lib.Sequence) -> None:
    """Moves a sequence from the queue to those that run."""
    del self.waiting[one.number]
    self.running[one.number] = one
    if not one.is_begun:
      self.shares.note_joined(one.tag, one.room)

  def drop(self, one: sequence_lib.Sequence) -> None:
    """Takes a sequence that ends out of the queue, if it waits."""
    self.waiting.pop(one.number, None)
    if not one.is_begun:
      self.shares.note_unserved(one.owner, one.room)
      if not self.waiting:
        self.shares.clear()

  def count_left(self, one: sequence_lib.Sequence) -> int:
    """Returns how many tokens are to be prefilled before a sequence draws."""
    if one.is_drawing:
      return 0
    if one.row is None:
      return one.length - one.reusable
    return one.length - self._decoder.length_of(one.row)

  def load(self) -> admission.Load:
    """Returns the load at the moment."""
    return admission.measure(
      [self._work(one) for one in self.waiting.values()],
      [self._work(one) for one in self.running.values()],
      self._account.free,
      len(self._account.tree),
      self._costs,
    )

  def refuse(
    self, one: sequence_lib.Sequence, limits: admission.Limits
  ) -> None:
    """Refuses a new sequence beyond some limits: request.Busy."""
    left = self.count_left(one)
    admission.refuse(limits, self.load(), self._costs, left)

  @property
  def _costs(self) -> admission.Costs:
    times = self.durations
    return admission.Costs(self._chunk, times.step.high, times.chunk.high)

  def _work(self, one: sequence_lib.Sequence) -> admission.Work:
    return admission.Work(self.count_left(one), one.tokens_left)

  def plan(
    self, now: float, shapes: Sequence[tuple[int, int]]
  ) -> schedule.Round:
    """Returns what the next round does; it changes nothing.

    `shapes` are those of prefills that are compiled; `now` is the engine's
    clock, in seconds.
    """
    waits = [_describe_waiting(one) for one in self.waiting.values()]
    left = {x: self.count_left(one) for x, one in self.running.items()}
    # Those that are left out wait for the host to read their last token.
    runs = [
      _describe_running(one, left[number])
      for number, one in self.running.items()
      if not one.is_whole
    ]
    highest = max((one.priority for one in waits), default=0)
    may_park = waits and any(one.priority < highest for one in runs)
    if may_park:
      runs = [self._add_freed(one) for one in runs]
    pages, account = {}, self._account
    if waits and (account.free or may_park):
      waits = self._add_needs(schedule.sort_waiting(waits, now), left)
      pages = account.free_pages()
    early = ()
    if self._pacing is not None:
      early = self._pacing.find_early(self.running.values(), now)
    budget = schedule.Budget(account.free, pages, shapes)
    return schedule.plan(waits, runs, budget, now, early)

  def _add_freed(self, one: schedule.Running) -> schedule.Running:
    """Adds the pages that a row gives up, if it may be parked."""
    sequence = self.running[one.number]
    # The slots of a search hold more than a text that could go on.
    if sequence.phase is phases.Phase.SEARCHING:
      return one
    return one._replace(frees=self._account.frees(sequence.row))

  def _add_needs(
    self, waits: list[schedule.Waiting], left: dict[int, int]
  ) -> list[schedule.Waiting]:
    """Adds what the first in the queue need, have left and follow."""
    account = self._account
    most = schedule.OVERTAKES + account.free if account.free else 1
    first = waits[:most]
    soon: _Recordings = {}
    for number, one in self.running.items():
      if self._reuses and one.phase is phases.Phase.PREFILLING:
        held = one.length - left[number]
        soon[number] = one.text(), [x for x in one.record_lengths if x > held]
    found_for = (
      account.version,
      [one.number for one in first],
      [(number, lengths) for number, (_, lengths) in soon.items()],
    )
    if found_for != self._found_for:
      self._found = [self._find_needs(one, soon) for one in first]
      self._found_for = found_for
    waits[:most] = [
      one._replace(needs=found.needs, left=found.left, follows=found.follows)
      for one, found in zip(first, self._found)
    ]
    return waits

  def _find_needs(
    self, one: schedule.Waiting, soon: _Recordings
  ) -> schedule.Waiting:
    """Adds what a sequence needs, has left and follows; adds it to `soon`."""
    account, sequence = self._account, self.waiting[one.number]
    text, follows = sequence.resumable if self._reuses else None, ()
    needs, resumed = account.needs(sequence.room, text, sequence.extra)
    if text is not None:
      minimum = resumed + account.page
      follows = [
        number
        for number, (other, lengths) in soon.items()
        if recording.count_resumable(other, lengths, text, minimum) >= minimum
      ]
      whole = sequence.text()
      soon[one.number] = (
        whole,
        recording.choose_lengths(resumed, sequence.prompt, whole.shared),
      )
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
