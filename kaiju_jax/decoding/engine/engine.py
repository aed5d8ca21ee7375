"""Continuous batching: many sequences over one decoder's rows, in rounds.

    engine = Engine(decoder, tokenizer)
    sequence = engine.submit(request)
    while sequence.reason is None:
      engine.advance()

A round is planned (`state.py`, `schedule.py`), dispatched and read
(`inflight.py`), and applied to its sequences (`Sequence.update`). It is one
step of all rows that draw, one chunk of prompts, and one step of a search
(`searches.py`): a long prompt delays the others by a chunk per token. There is
no thread: a caller that waits for a token runs the rounds. Ctrl-C takes effect
between rounds.

Texts stay in the decoder's prefix tree when their sequences end. A prompt
resumes the longest beginning that was recorded: an earlier turn, another
candidate, or another user's text with the same character.

With `ahead`, a round is dispatched before the tokens of the one before it are
read. The host's work then overlaps the device's, and a stop is noticed a round
later: the token drawn meanwhile is not shown.
"""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import time

import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import interrupts
from kaiju_jax.decoding.device import judge as judge_lib
from kaiju_jax.decoding.engine import admission
from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import inflight
from kaiju_jax.decoding.engine import pacing
from kaiju_jax.decoding.engine import phases
from kaiju_jax.decoding.engine import schedule
from kaiju_jax.decoding.engine import searches
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.engine import state as state_lib
from kaiju_jax.decoding.pages import pages as pages_lib
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.pages import recording
from kaiju_jax.decoding.requests import alternatives as alternatives_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import stop


class Engine:
  """The sequences over one decoder's rows.

  Args:
    decoder: the model and its cache; the engine needs all of its rows.
    tokenizer: None for no text.
    chunk: most prompt tokens of a round.
    batch_invariant: whether a sequence's logits depend on its text alone, to
      the last bit: then nothing is resumed, and no prompts share a call, which
      moves last bits in the fast mode.
    ahead: whether a round is dispatched before the one before it is read.
    limits: when it refuses; by default never.
    clock: returns seconds since any moment.
    head: a token-level head (`token_head.load`), whose scores events carry.
    candidates: most of a step of a guided request; 0 for no such requests. The
      decoder then needs `extra` slots (`request.Guide.extra`).
    alternatives: the most that a request may ask for (`Request.alternatives`).
    pace: above which streams sit out rounds (`pacing.py`); None for none.
    shares: as of `compiled.Rounds`; by default, unless `batch_invariant`.

  Raises:
    ValueError: a chunk without tokens, a head of another model, or a decoder
      that cannot search for candidates.
  """

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    tokenizer: tokenizer_lib.Tokenizer | None = None,
    *,
    chunk: int = 256,
    batch_invariant: bool = False,
    ahead: bool = False,
    limits: admission.Limits | None = None,
    clock: Callable[[], float] = time.monotonic,
    head: judge_lib.Head | None = None,
    candidates: int = 0,
    alternatives: int = 0,
    pace: pacing.Pace | None = None,
    shares: bool | None = None,
  ):
    if chunk < 1:
      raise ValueError(f'chunk={chunk}: must be at least 1.')
    self.alternatives: int = alternatives_lib.check(
      alternatives, decoder.tokens
    )
    self.decoder = decoder
    self.judge: judge_lib.Judge | None = head and judge_lib.Judge(head, decoder)
    shares = not batch_invariant if shares is None else shares
    # The compiled calls.
    self.rounds: compiled.Rounds = compiled.Rounds(
      decoder, chunk, shares, self.judge, alternatives, tokenizer
    )
    self._searches = searches.Searches(
      decoder, candidates, self.judge, is_recorded=not batch_invariant
    )
    self.limits: admission.Limits = limits or admission.Limits()
    self._tokenizer = tokenizer
    self._reuses = reuses = not batch_invariant
    self._ahead = int(ahead)
    self._clock = clock
    # Keeps the points of conversations.
    self.recorder: recording.Recorder = recording.Recorder(decoder.account.tree)
    classes = 0 if self.judge is None else len(self.judge.names)
    self._inflight = inflight.InFlight(
      decoder, self.rounds, classes, alternatives
    )
    self.state: state_lib.State = state_lib.State(decoder, reuses, chunk, pace)
    self._abandoned: list[Callable[[], None]] = []
    self._count = 0
    self._is_draining = False

  @property
  def is_idle(self) -> bool:
    """Whether no sequence waits or runs."""
    return not (self.state.waiting or self.state.running)

  def check(
    self,
    request: request_lib.Request,
    name: str = 'request',
    length: int | None = None,
  ) -> np.ndarray:
    """Returns a valid request's prompt as int32 [L].

    `name` stands for the request in messages. `length` is the most tokens of
    prompt and continuation; by default what a row holds. Raises TypeError,
    ValueError: names the field that is wrong.
    """
    length = self.decoder.length if length is None else length
    size, most = self.decoder.tokens, self.alternatives
    tokens_L = request_lib.check(request, size, length, name, most)
    if request.stop_strings and self._tokenizer is None:
      raise ValueError(
        f'{name}.stop_strings={request.stop_strings!r}: the engine has no'
        ' tokenizer to find them with.'
      )
    if request.guided is not None:
      self._searches.check(request, name)
    if self.judge is not None:
      self.judge.check()
    return tokens_L

  def warm(
    self,
    prompts: Sequence[int] | None = None,
    scores: bool = False,
    puts_off: bool = False,
  ) -> None:
    """Compiles what requests run, so that none waits for it.

    `prompts` are the lengths of prompts that come one at a time and unscored;
    by default any, several at once too. `scores` compiles for scored prompts as
    well, the first of which waits otherwise; `puts_off` is as in
    `compiled.Rounds.warm`. Raises pages.Full: no row is free.
    """
    self.rounds.warm(prompts, scores, puts_off)
    self._searches.warm(self.rounds)

  def submit(
    self, request: request_lib.Request, prior_tokens: int = 0
  ) -> sequence_lib.Sequence:
    """Admits a request; returns its sequence, which joins as soon as it can.

    `prior_tokens` of the prompt are earlier turns', not scored. Raises
    TypeError, ValueError: names the field that is wrong; request.Busy: the
    queue or the wait is too long, or the engine drains.
    """
    tokens_L = self.check(request)
    if self._is_draining:
      raise request_lib.Busy('the engine is being stopped.', None)
    text = stop.Text(self._tokenizer, request.stop_tokens, request.stop_strings)
    text.begin(tokens_L[len(tokens_L) - request.begun :])
    text.skip(request.drawn)
    self._count += 1
    one = sequence_lib.Sequence(
      self._count, request, tokens_L, text, prior_tokens, self.judge
    )
    if self._reuses:
      needs = self.decoder.account.needs(one.room, one.resumable, one.extra)
      one.reusable = needs[1]
    # A text that has begun was admitted before.
    if self.limits != admission.Limits() and not len(request.drawn):
      self.state.refuse(one, self.limits)
    one.came = one.read_at = self._clock()
    self.state.add(one)
    return one

  def advance(self) -> None:
    """Runs a round; pages.Full if what waits can never get a row."""
    with interrupts.delay():
      self.collect_abandoned()
      begun = self._clock()
      plan = self.state.plan(begun, self.rounds.shapes)
      for number in plan.late:
        self._expire(self.state.waiting[number])
      if plan.park:
        # The tokens read here may end these sequences, and others.
        self._read_all()
      for one in self._in_rows(plan.park):
        self._park(one)
      for number in plan.overtaken:
        self.state.waiting[number].overtaken += 1
      for number in plan.join:
        self._join_if_it_fits(self.state.waiting[number])
      if self.state.waiting and not self.state.running and not plan.park:
        self._join(next(iter(self.state.waiting.values())))
      steps = self._dispatch(plan)
      while len(self._inflight) > (self._ahead if self.state.running else 0):
        self._read_round()
      for one in () if self._ahead else self._in_rows(plan.search):
        self._finish(one, self._searches.finish_step(one))
      seconds = self._clock() - begun
      if steps or plan.prefill:
        self.state.durations.note(seconds, bool(steps), bool(plan.prefill))

  def cancel(self, sequence: sequence_lib.Sequence) -> None:
    """Ends a sequence that has not ended, and frees its row."""
    with interrupts.delay():
      if sequence.reason is None:
        self._read_all()
        self._finish(sequence, 'cancelled')

  def call_between_rounds(self, end: Callable[[], None]) -> None:
    """Calls `end` before the next round, as a finalizer may run within one."""
    self._abandoned.append(end)

  def collect_abandoned(self) -> None:
    """Ends sequences that were dropped or whose lease is over."""
    while self._abandoned:
      self._abandoned.pop()()
    lease = self.limits.lease
    if lease is not None:
      now = self._clock()
      for one in self.state.sequences():
        if now - one.read_at > lease:
          self.cancel(one)

  def read(self, sequence: sequence_lib.Sequence) -> None:
    """Renews a sequence's lease."""
    sequence.read_at = self._clock()

  def drain(self, seconds: float) -> list[sequence_lib.Sequence]:
    """Takes no new requests, finishes what runs, and ends the rest in time.

    After `seconds` all that have not ended are ended and recorded; it returns
    them, with the reason 'drained'.
    """
    self._is_draining = True
    end = self._clock() + seconds
    while not self.is_idle and self._clock() < end:
      self.advance()
    rest = self.state.sequences()
    with interrupts.delay():
      self._read_all()
      for one in rest:
        self._finish(one, 'drained')
    return [one for one in rest if one.reason == 'drained']

  def load(self) -> admission.Load:
    """Returns the engine's load at the moment."""
    return self.state.load()

  def _join_if_it_fits(self, one: sequence_lib.Sequence) -> None:
    """Gives a row to a sequence; it waits on if it needs more pages by now.

    One that joined before it may have displaced what it was to resume.
    """
    try:
      self._join(one)
    except pages_lib.Full:
      if not self.state.running:
        raise

  def _join(self, one: sequence_lib.Sequence) -> None:
    """Gives a row to a sequence, or leaves it waiting; raises pages.Full."""
    text = one.resumable if self._reuses else None
    row = self.decoder.open(one.room, one.extra, text)
    try:
      length, account = self.decoder.length_of(row), self.decoder.account
      match = account.match_of(row)
      score_LC = self._find_scores(match)
      self.rounds.join(row, one.request.sampling, one.tokens_L, one.prompt)
    except BaseException:
      self.decoder.close(row)
      raise
    if score_LC is not None:
      if np.isnan(score_LC).any():
        self._release_row(row, match)
        return
      one.update(sequence_lib.Judged(0, score_LC))
    self.state.join(one)
    one.enter(phases.Phase.PREFILLING)
    if not one.is_begun:
      one.reused = min(length, one.prompt)
    one.row, one.joined_at = row, self._clock()
    if self._reuses and one.recorder is None:
      one.recorder = self.recorder.open_request(
        one.text(one.prompt), match, one.conversation
      )

  def _release_row(self, row: int, match: prefix_tree.Match) -> None:
    """Closes a row whose resumed tokens will get no scores; drops the point."""
    self.decoder.close(row)
    tree = self.decoder.account.tree
    if match.point in tree:
      tree.drop(match.point)

  def _park(self, one: sequence_lib.Sequence) -> None:
    """Takes a sequence's row away; it waits, and goes on where it was."""
    self._record(one)
    self._requeue(one)

  def _requeue(self, one: sequence_lib.Sequence) -> None:
    one.enter(phases.Phase.PARKED)
    self._close(one)
    self.state.waiting[one.number] = one

  def _expire(self, one: sequence_lib.Sequence) -> None:
    one.error = request_lib.Late(
      f'sequence {one.number} found no row within {one.request.deadline:g} s.'
    )
    self._finish(one, 'error')

  def _dispatch(self, plan: schedule.Round) -> int:
    """Dispatches a round's calls; returns how many rows its step has."""
    self._inflight.open_round()
    # In this order, so that a first token waits for no further step.
    going = self._in_rows(plan.draw)
    if going:
      self._inflight.step(going)
    for one in self.state.running.values():
      one.passed += one.phase is not phases.Phase.DRAWING
    prompts = self._in_rows(plan.prefill)
    if prompts:
      self._prefill(prompts, plan.shape)
    for one in self._in_rows(plan.search):
      one.passed = 0
      self._finish(one, self._searches.finish_step(one))
      if one.reason is None:
        self._finish(one, self._searches.dispatch(one))
    return len(going)

  def _prefill(
    self, prompts: Sequence[sequence_lib.Sequence], shape: tuple[int, int]
  ) -> None:
    """Dispatches chunks of prompts; records points, and begins searches."""
    for one in prompts:
      one.passed = 0
    with self._requeued_on_error(*prompts):
      self._inflight.prefill(prompts, shape)
    for one in prompts:
      if self.decoder.length_of(one.row) == one.length:
        phase = phases.Phase.DRAWING if one.draws else phases.Phase.SEARCHING
        one.enter(phase)
    for one in prompts:
      if self.decoder.length_of(one.row) in one.record_lengths:
        self._record(one)
    begins = [x for x in prompts if x.phase is phases.Phase.SEARCHING]
    for at, one in enumerate(begins):
      # None of those that follow has a search yet, either.
      with self._requeued_on_error(*begins[at:]):
        place = prompts.index(one)
        self._searches.begin(one, self.rounds.last_BLD, place)

  @contextlib.contextmanager
  def _requeued_on_error(self, *several: sequence_lib.Sequence):
    """Takes the rows of sequences away if what runs for them fails.

    Nothing of it is recorded, and they wait to run again.
    """
    try:
      yield
    except BaseException:
      for one in several:
        self._requeue(one)
      raise

  def _read_round(self) -> None:
    """Waits for the oldest round, and applies what its calls gave."""
    while (output := self._inflight.read()) is not None:
      one, given = output
      self._finish(one, one.update(given))

  def _read_all(self) -> None:
    while len(self._inflight):
      self._read_round()

  def _find_scores(self, match: prefix_tree.Match | None) -> np.ndarray | None:
    """Returns the head's scores of resumed tokens, NaN if none will come."""
    if match is None or self.judge is None:
      return None
    tree = self.decoder.account.tree
    if np.isnan(tree.scores(match)).any():
      self._read_all()  # A call that scores them may be in flight.
    return tree.scores(match)

  def _in_rows(self, numbers: Sequence[int]) -> list[sequence_lib.Sequence]:
    """Returns the sequences of a plan that have not lost their rows since."""
    return [self.state.running[x] for x in numbers if x in self.state.running]

  def _record(self, one: sequence_lib.Sequence) -> None:
    """Makes a point of a sequence's row, if that holds text.

    A row that is a round ahead may hold a token that was not given out, and
    lack pages that a point before it needs: then there is none.
    """
    length = self.decoder.length_of(one.row)
    if not (self._reuses and length and one.search is None):
      return
    text, account = one.text(length), self.decoder.account
    pages, count = account.pages_of(one.row), len(text.tokens)
    if count == length or account.tree.can_record(count, pages):
      one.recorder.record(text, pages)

  def _finish(self, one: sequence_lib.Sequence, reason: str | None) -> None:
    """Ends a sequence and frees its row; does nothing without a reason."""
    if reason is None or one.reason is not None:
      return
    one.enter(phases.Phase.ENDED)
    one.reason = reason
    self.state.drop(one)
    if one.row is not None:
      # A round ahead, bad logits may have left the window's pages.
      if one.error is None:
        self._record(one)
      self._close(one)
    if (
      isinstance(one.error, request_lib.BadLogits) and one.recorder is not None
    ):
      one.recorder.discard()
    elif one.recorder is not None:
      one.recorder.end()

  def _close(self, one: sequence_lib.Sequence) -> None:
    del self.state.running[one.number]
    self.decoder.close(one.row)
    one.row = one.unjudged = one.search = None
    one.came += self._clock() - one.joined_at
