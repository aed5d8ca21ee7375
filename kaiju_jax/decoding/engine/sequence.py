"""A sequence: one request on its way to its result.

With a token-level head, the engine gives out no token before the head has
judged it. The call that appends a token to the cache judges it, one call after
the token was drawn. Until then the sequence holds the token, and its last token
takes a call of its own. A token that is held when the sequence ends or is
parked does not count: a parked sequence draws it again. A stop token shows no
text, so it ends the sequence at once, unjudged.
"""

import collections
from collections.abc import Hashable

import numpy as np

from kaiju_jax.decoding.beam import paths as beam_paths
from kaiju_jax.decoding.beam import search as beam
from kaiju_jax.decoding.device import judge as judge_lib
from kaiju_jax.decoding.engine import phases
from kaiju_jax.decoding.engine import rounds
from kaiju_jax.decoding.engine import schedule
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.pages import recording
from kaiju_jax.decoding.pages import texts
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import stop


class Sequence:
  """One request: its phase, its tokens so far, and its place in the queue.

  Attributes:
    number: names the sequence in messages.
    request: the request.
    prompt: tokens of the prompt.
    given: tokens with which it comes, of the prompt and `Request.drawn`.
    owner: the request's owner, as the prefix tree's bytes.
    before: how many of them belong to earlier turns and are not scored.
    came: when it was submitted, in seconds of the engine's clock, plus the
      seconds for which it has had a row since.
    joined_at: when it got its latest row; None before the first.
    tag: its place in its owner's share (`schedule.Shares`).
    row: the cache row's index; None while it has none.
    points: records its text; None before its first row, and where the engine
      records nothing.
    reusable: tokens that were in the cache when it came.
    reused: tokens of the prompt that did not run.
    search: finds its continuation, until its row is text again; None for a
      sequence that draws.
    flying: calls that have drawn for it and that the host has not read.
    overtaken: how many later sequences joined while it waited (`schedule.py`).
    passed: rounds since its prompt or its search last ran.
    read_at: when its caller last read its events.
    reason: why it ended (`request.Result`); None before.
    error: see `request.Result`.
    events: tokens that its caller has not read yet.
    prompt_scores: see `request.Result`.
  """

  def __init__(
    self,
    number: int,
    request: request_lib.Request,
    tokens_L: np.ndarray,
    text: stop.Text,
    before: int = 0,
    judge: judge_lib.Judge | None = None,
  ):
    self.number = number
    self.request = request
    self._phase = phases.Phase.WAITING
    self.prompt = len(tokens_L)
    self.given = self.prompt + len(request.drawn)
    self.before = before
    self.came = 0.0
    self.joined_at: float | None = None
    self.tag = 0.0
    self.row: int | None = None
    self.points: recording.RequestPoints | None = None
    self.reusable = 0
    self.reused = 0
    self.search: beam.BeamSearch | None = None
    self.flying = 0
    self.overtaken = 0
    self.passed = 0
    self.read_at = 0.0
    self.reason: str | None = None
    self.error: Exception | None = None
    self.events: collections.deque[request_lib.Event] = collections.deque()
    self.owner = request.owner.encode()
    self.prompt_scores: tuple[float, ...] | None = None
    # All tokens, of the prompt and drawn.
    self._tokens = np.empty(self.prompt + request.max_tokens, np.int32)
    self._tokens[: self.prompt] = tokens_L
    self._tokens[self.prompt : self.given] = request.drawn
    self._draw = len(request.drawn)
    # What the head gives each of them; NaN where that is not known.
    self._judged: texts.Scores | None = None
    if judge is not None:
      shape = self.room, len(judge.names)
      score_LC = np.full(shape, np.nan, np.float32)
      self._judged = texts.Scores(judge.version, score_LC)
    self._memo = texts.Memo()
    # The latest entry among the schedule's rows, and what it follows from.
    self._entry: tuple = (None, None)
    self._text = text
    self._stops = frozenset(request.stop_tokens)
    # Drawn and not judged yet: a token, its log-probability, alternatives.
    self._held: tuple[int, float, request_lib.Alternatives] | None = None
    # What the head gave the last token that it judged, for events.
    self._scores: tuple[float, ...] | None = None
    self._pieces: list[str] = []
    self._log_probabilities: list[float] = []
    # Scores of chunks, which entries of each count, and where they end.
    self._scored: list[tuple[rounds.Scores, slice]] = []
    self._scored_to = before

  @property
  def phase(self) -> phases.Phase:
    """The sequence's phase; `join`, `begin`, `park` and `end` change it."""
    return self._phase

  @property
  def is_begun(self) -> bool:
    """Whether it ever had a row."""
    return self.joined_at is not None

  @property
  def is_drawing(self) -> bool:
    """Whether its row holds the whole prompt, so that tokens follow."""
    return self._phase in (phases.Phase.DRAWING, phases.Phase.SEARCHING)

  @property
  def is_judged(self) -> bool:
    """Whether a head judges its tokens."""
    return self._judged is not None

  @property
  def draws(self) -> bool:
    """Whether its tokens are drawn; otherwise a search finds them."""
    return self.request.guided is None

  @property
  def waited(self) -> float:
    """For how many seconds it has waited for rows, once it had one."""
    return max(self.joined_at - self.came, 0.0) if self.is_begun else 0.0

  @property
  def conversation(self) -> Hashable | None:
    """The conversation that its points belong to, one per owner and name."""
    if self.request.conversation is None:
      return None
    return self.owner, self.request.conversation

  @property
  def room(self) -> int:
    """Tokens that its row must have room for."""
    return len(self._tokens)

  @property
  def extra(self) -> int:
    """Slots that its search needs beyond its text."""
    guide = self.request.guided
    return 0 if guide is None else guide.extra(self.request.max_tokens)

  @property
  def length(self) -> int:
    """Tokens of the text so far, prompt and drawn."""
    return self.prompt + self._draw

  @property
  def is_whole(self) -> bool:
    """Whether it needs no further call, once the device has run its last."""
    return self.draws_left <= self.flying

  @property
  def draws_left(self) -> int:
    """How many more times calls may draw for it, unread ones among them."""
    drawn = self._draw + (self._held is not None)
    # The last token is judged by the call that would draw one more.
    return self.request.max_tokens + self.is_judged - drawn

  @property
  def tokens_left(self) -> int:
    """How many more tokens it may draw."""
    steps = 0 if self.search is None else self.search.step
    return self.request.max_tokens - self._draw - steps

  def tokens(self, begin: int, end: int) -> np.ndarray:
    """Returns tokens of the text, int32."""
    return self._tokens[begin : min(end, self.length)]

  def text(self, length: int | None = None) -> prefix_tree.Text:
    """Returns the beginning of the text, all of it by default."""
    length = self.length if length is None else min(length, self.length)
    return prefix_tree.Text(
      self._tokens[:length],
      self.request.shared,
      self.owner,
      self.request.cache_salt.encode(),
      self._judged,
      self._memo,
    )

  def stops(self, begin: int = 0) -> list[int]:
    """Returns the lengths beyond `begin` at which its prompt is recorded."""
    if self.points is None:
      return []
    return [stop for stop in self.points.stops if stop > begin]

  def resumable(self) -> prefix_tree.Text:
    """Returns the text whose beginning it may resume, its last token excluded.

    A token whose successor is to be scored must run, so it is not resumed.
    """
    if self.is_begun or not self.request.scores_prompt:
      return self.text()
    return self.text(self.before + 1)

  def waiting(self) -> schedule.Waiting:
    """Returns its entry in the schedule's queue."""
    deadline = None if len(self.request.drawn) else self.request.deadline
    return schedule.Waiting(
      self.number,
      self.came,
      self.tag,
      self.request.priority,
      None if deadline is None or self.is_begun else self.came + deadline,
      overtaken=self.overtaken,
      is_alone=self.request.scores_prompt,
    )

  def running(self, left: int) -> schedule.Running:
    """Returns its entry among the schedule's rows."""
    key = left, self.passed, self.joined_at
    if self._entry[0] != key:
      self._entry = key, self._running(left)
    return self._entry[1]

  def _running(self, left: int) -> schedule.Running:
    return schedule.Running(
      self.number,
      self.came,
      left,
      self.request.priority,
      self.passed,
      self.request.scores_prompt,
      self.tag,
      self.waited,
      is_guided=not self.draws,
    )

  def join(self, row: int, length: int, now: float) -> None:
    """Notes its row, which holds the first `length` tokens of its text."""
    self._enter(phases.Phase.PREFILLING)
    if not self.is_begun:
      self.reused = min(length, self.prompt)
    self.row = row
    self.joined_at = now

  def begin(self) -> None:
    """Notes that its row holds all of its text."""
    self._enter(phases.Phase.DRAWING if self.draws else phases.Phase.SEARCHING)

  def park(self) -> None:
    """Notes that it loses its row, and waits for another."""
    self._enter(phases.Phase.PARKED)

  def end(self, reason: str) -> None:
    """Notes why it ends."""
    self._enter(phases.Phase.ENDED)
    self.reason = reason

  def _enter(self, phase: phases.Phase) -> None:
    phases.check(self.number, self._phase, phase)
    self._phase = phase

  def leave(self, now: float) -> None:
    """Forgets its row."""
    self.row = None
    self._held = None
    self.search = None
    self.came += now - self.joined_at

  def judge(self, begin: int, score_LC: np.ndarray) -> str | None:
    """Notes the head's scores of prefilled or resumed tokens.

    `score_LC` are float32 probabilities from position `begin` on. Returns why
    the sequence ends, None where it goes on, as `take` and `find` do.
    """
    self._judged.score_LC[begin : begin + len(score_LC)] = score_LC
    if not np.isfinite(score_LC).all():
      self.error = self._bad_scores()
      return 'error'
    prompt_LC = score_LC[: max(self.prompt - begin, 0)]
    if len(prompt_LC):
      if self.prompt_scores is not None:
        prompt_LC = [*prompt_LC, self.prompt_scores]
      self.prompt_scores = tuple(np.max(prompt_LC, axis=0).tolist())
    if begin + len(score_LC) > self.prompt:
      self._scores = tuple(score_LC[-1].tolist())
    return None

  def take(
    self,
    token: int,
    log_probability: float,
    score_C: np.ndarray | None = None,
    alternatives: request_lib.Alternatives = (),
  ) -> str | None:
    """Notes the token that a call drew, −1 where the logits were no numbers.

    `score_C` are the head's of the token before it, None without a head;
    `alternatives` the likeliest tokens in its place, as `Event` has them.
    """
    if self._held is not None:
      if not np.isfinite(score_C).all():
        self.error = self._bad_scores()
        return 'error'
      held, self._held = self._held, None
      self._note(score_C)
      reason = self._give(*held)
      if reason is not None:
        return reason
    if token < 0:
      self.error = self._bad_logits()
      return 'error'
    if self.is_judged and token not in self._stops:
      self._held = token, log_probability, alternatives
      return None
    return self._give(token, log_probability, alternatives)

  def take_late(self, score_C: np.ndarray) -> None:
    """Notes the head's scores of a call that ran after the last token."""
    if self.reason == 'stop_token':
      self._judged.score_LC[self.length - 1] = score_C

  def find(self, best: beam_paths.Beam) -> str | None:
    """Gives out the tokens that a search found."""
    if not np.isfinite(best.probabilities).all():
      self.error = self._bad_scores()
      return 'error'
    reason = None
    for number, token in enumerate(best.tokens):
      if best.probabilities:
        self._note(best.probabilities[number], token not in self._stops)
      reason = self._give(token, best.log_probabilities[number])
      if reason is not None:
        break
    return reason

  def _note(self, score_C: np.ndarray, is_shown: bool = True) -> None:
    """Notes the head's scores of the token that is given out next."""
    self._judged.score_LC[self.length] = score_C
    if is_shown:
      self._scores = tuple(score_C.tolist())

  def _give(
    self,
    token: int,
    log_probability: float,
    alternatives: request_lib.Alternatives = (),
  ) -> str | None:
    """Gives out a token; returns why the sequence ends with it, or None."""
    piece = self._text.push(token)
    reason = self._text.reason
    self._tokens[self.length] = token
    self._draw += 1
    if reason is None and self._draw == self.request.max_tokens:
      piece += self._text.finish()
      reason = self._text.reason or 'length'
    self._pieces.append(piece)
    self._log_probabilities.append(log_probability)
    self.events.append(
      request_lib.Event(
        token,
        piece,
        log_probability,
        reason,
        self._scores,
        self._text.held,
        alternatives,
      )
    )
    return reason

  def score(self, begin: int, count: int, scores: rounds.Scores) -> None:
    """Notes scores of `count` tokens' successors from `begin` on, once each."""
    end = min(begin + count, self.prompt - 1)
    if end > self._scored_to:
      kept = slice(max(self._scored_to - begin, 0), end - begin)
      self._scored.append((scores, kept))
      self._scored_to = end

  def _bad_scores(self) -> request_lib.BadLogits:
    return self._bad(
      'what the token-level head gives a token is no number, so that nothing'
      ' may be shown.'
    )

  def _bad_logits(self) -> request_lib.BadLogits:
    return self._bad(
      'its logits hold NaN or +inf, or nothing but -inf, so that no token can'
      ' be drawn.'
    )

  def _bad(self, what: str) -> request_lib.BadLogits:
    return request_lib.BadLogits(
      f'sequence {self.number}, in row {self.row}, step {self._draw}: {what} It'
      f' ends here, {self._draw} tokens after its prompt of {self.prompt}.'
    )

  def result(self) -> request_lib.Result:
    """Returns the result so far."""
    scores = likeliest = None
    if self.request.scores_prompt:
      scores, _, likeliest = rounds.concatenate(self._scored)
    return request_lib.Result(
      tokens=self._tokens[self.given : self.length].copy(),
      text=''.join(self._pieces),
      log_probabilities=np.array(self._log_probabilities, np.float32),
      prompt_log_probabilities=scores,
      reason=self.reason,
      error=self.error,
      reused=self.reused,
      prompt_scores=self.prompt_scores,
      prompt_alternatives=likeliest if self.request.alternatives else None,
    )
